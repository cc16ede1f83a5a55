"""Where Horovod jobs run and in which mode: the Kubernetes operator.

It shares only strings with the other two packages (mode names, plan fields, environment keys) and imports
neither.
"""

import sys

# ``kopf run -m gradsieve_operator`` finds the handlers; everybody else gets along without kopf.
if "kopf" in sys.modules:
    from gradsieve_operator import handlers as handlers
