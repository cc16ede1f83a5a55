"""The control channel of a job on several hosts: a coordinator, an agent on every host, and no SSH.

Agents dial the coordinator over mutual TLS and run what it hands them; the coordinator decides who may take
part, starts the ranks (``mpirun`` with a launch agent, or Horovod's elastic driver), and tells what happens.
"""
