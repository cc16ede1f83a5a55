"""Whose turn it is, of the processes of tests on this machine, to have ranks whose pace matters."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_LOCK = Path("/run/lock/gradsieve-cluster/turn")


class Turn:
    """At most one process has it; the kernel takes it back from one that dies."""

    def __init__(self) -> None:
        self._lock: int | None = None

    def take(self) -> None:
        """Wait until no other process has it; nothing if this one has it."""
        if self._lock is not None:
            return
        _LOCK.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._lock = descriptor

    def give_up(self) -> None:
        """Let another process have it; nothing if this one does not have it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
