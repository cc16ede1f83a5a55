"""First stage of the supervisor: moves to private namespaces, then becomes the supervisor.

Run by its path and with the standard library alone until then: only a process with a single thread can enter
a user namespace, and numerical libraries start threads when they are imported.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_PRIVATE = _CLONE_NEWNET | _CLONE_NEWUTS | _CLONE_NEWNS


def _unshare(flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def _map_to_root(user: int, group: int) -> None:
    for name, line in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - pathlib is not needed for three writes
            file.write(line)


def enter_private_namespaces() -> None:
    """Move this process to network, UTS and mount namespaces of its own.

    1. Try directly, as root may.
    2. Otherwise in a user namespace in which the user is root: files and devices are accessed as before.

    Raises:
        OSError: neither is allowed.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        _unshare(_PRIVATE)
    except OSError as refused:
        if refused.errno != errno.EPERM:
            raise
        _unshare(_CLONE_NEWUSER | _PRIVATE)
        _map_to_root(user, group)


def main(job: str, control: str) -> None:
    """Become the supervisor of ``job``, in private namespaces if it has an emulated link."""
    refused = ""
    if json.loads(job)["link"] is not None:
        try:
            enter_private_namespaces()
        except OSError as error:
            refused = str(error)
    from gradsieve_hvd.launcher import supervisor

    supervisor.main(job, control, refused)


if __name__ == "__main__":
    main(*sys.argv[1:])
