"""Who owns which slot of the machine, and how what a dead owner left is removed.

A slot is a lock file that the owner and its guardian hold: the kernel gives it back when both are dead, so
that a slot which is free but still has a state folder was left behind. Nothing depends on process ids, which
are reused.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster import cgroups
from cluster.addresses import SLOTS, Addresses
from cluster.commands import run
from cluster.errors import ClusterError
from cluster.waiting import wait_for
from cluster.wiring import is_free

_LOCKS = Path("/run/lock/gradsieve-cluster")
# On a disk, as images live there; with a short name, as sockets do; and not where nodes hide the machine's
# folders.
_STATES = Path("/var/tmp/gradsieve-cluster")
_GONE_SECONDS = 30


@dataclass(frozen=True)
class Slot:
    """A slot that this process owns as long as it keeps `lock` open."""

    number: int
    lock: int

    @property
    def addresses(self) -> Addresses:
        """Names and addresses of the cluster in this slot."""
        return Addresses(self.number)

    @property
    def state(self) -> Path:
        """The folder of everything that the cluster writes."""
        return state_folder(self.number)

    def release(self) -> None:
        """Give the slot back."""
        os.close(self.lock)


def state_folder(number: int) -> Path:
    """Return the folder of everything that a cluster in slot `number` writes."""
    return _STATES / str(number)


def acquire() -> Slot:
    """Take the first free slot whose addresses the machine does not use, with an empty state folder.

    Raises:
        ClusterError: all slots are taken.
    """
    remove_leftovers()
    for number in range(SLOTS):
        if (lock := _try_lock(number)) is None:
            continue
        slot = Slot(number, lock)
        if not slot.state.exists() and is_free(slot.addresses.network):
            slot.state.mkdir(parents=True, mode=0o711)
            return slot
        slot.release()
    raise ClusterError(f"all {SLOTS} slots for clusters on this machine are taken")


def remove_leftovers() -> list[int]:
    """Remove what dead owners left, and return the numbers of their slots."""
    removed = []
    for number in range(SLOTS):
        if not state_folder(number).exists():
            continue
        with _locked(number) as mine:
            if mine and state_folder(number).exists():
                remove(number)
                removed.append(number)
    return removed


def remove(number: int) -> None:
    """End and remove everything of the cluster in slot `number`; the caller must hold the slot. Can be
    repeated.

    1. Kill all processes in its cgroups. With them go their namespaces, and with those mounts and links.
    2. Remove the machine's end of the link, in case the kernel is not yet through with the hub.
    3. Remove the state folder last: as long as it is there, the next start tries again.
    """
    addresses = Addresses(number)
    cgroups.remove(addresses.cgroup)
    run(["ip", "link", "delete", addresses.link], check=False)
    wait_for(f"the end of link {addresses.link}", lambda: not _link_exists(addresses.link), _GONE_SECONDS)
    state = state_folder(number)
    if mounted := [
        line for line in Path("/proc/self/mounts").read_text().splitlines() if f" {state}/" in line
    ]:
        raise ClusterError(f"{state} is not removed because something is mounted in it: {mounted}")
    shutil.rmtree(state)


def _link_exists(name: str) -> bool:
    return Path("/sys/class/net", name).exists()


def _try_lock(number: int) -> int | None:
    _LOCKS.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(_LOCKS / str(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def _locked(number: int) -> Iterator[bool]:
    lock = _try_lock(number)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)
