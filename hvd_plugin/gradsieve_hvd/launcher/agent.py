"""Launch agent: ``mpirun`` calls it in place of ``ssh`` to start a daemon on one of the emulated hosts.

Runs as a plain script of the standard library alone (``python -I -S agent.py HOST COMMAND...``): every host
starts one, and importing a package that imports torch would cost seconds each time.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys

HOSTS_VARIABLE = "GRADSIEVE_LINK_HOSTS"
"""JSON object: host name -> path of its network namespace below ``/proc``."""

_CLONE_NEWUTS = 0x04000000
_CLONE_NEWNET = 0x40000000


def enter(host: str) -> None:
    """Move this process to ``host``: its network, and a host name of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(json.loads(os.environ[HOSTS_VARIABLE])[host], os.O_RDONLY | os.O_CLOEXEC)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0 or libc.unshare(_CLONE_NEWUTS) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot enter host {host}: {os.strerror(number)}")
    socket.sethostname(host)


def main(arguments: list[str]) -> None:
    """Enter the host named first and become the shell that runs the rest, as with ``ssh HOST COMMAND...``."""
    host, *command = arguments
    enter(host)
    os.execv("/bin/sh", ["sh", "-c", " ".join(command)])


if __name__ == "__main__":
    main(sys.argv[1:])
