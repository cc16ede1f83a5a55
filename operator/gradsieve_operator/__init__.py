"""Where Horovod jobs run and in which mode: the Kubernetes operator.

It shares only strings with the other two packages (mode names, plan fields, environment keys) and imports
neither.
"""
