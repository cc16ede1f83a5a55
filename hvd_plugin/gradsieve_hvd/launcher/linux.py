"""The system calls of Linux that the launcher needs and that Python 3.11 does not offer.

Each raises :class:`OSError` with the call's name, so that a caller can say what was refused.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket

CLONE_NEWNET = 0x40000000
MS_BIND = 0x1000
MS_REC = 0x4000
MS_SLAVE = 0x80000

_SIOCGIFADDR = 0x8915
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def _check(call: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Give the calling thread fresh namespaces of the kinds in ``flags``."""
    _check("unshare", _libc.unshare(ctypes.c_int(flags)))


def set_namespace(descriptor: int, kind: int) -> None:
    """Move the calling thread into the namespace that ``descriptor`` refers to."""
    _check("setns", _libc.setns(ctypes.c_int(descriptor), ctypes.c_int(kind)))


def set_host_name(name: str) -> None:
    """Rename the host, as seen from the calling process's UTS namespace."""
    socket.sethostname(name)


def mount(source: str, target: str, flags: int) -> None:
    """Mount without a file system type: bind mounts and changes of propagation."""
    _check("mount", _libc.mount(source.encode(), target.encode(), None, ctypes.c_ulong(flags), None))


def interface_of(address: str) -> str:
    """Name of the network interface with this IPv4 address; empty if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(channel, _SIOCGIFADDR, name.encode()[:15].ljust(256, b"\0"))
            except OSError:
                # The interface has no IPv4 address.
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def become_subreaper() -> None:
    """Adopt every orphan among the descendants, so that none can escape by daemonizing."""
    _check("prctl", _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def die_with_parent() -> None:
    """Have SIGTERM delivered when the parent dies; to be called in a child before it executes its program."""
    _check("prctl", _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0))
