"""Descendants of the calling process: who they are, and that none of them outlives a job."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK")
"""Environment variables that carry a process's rank: set by Open MPI, and by our Gloo start."""


def parents() -> dict[int, int]:
    """Parent of every process that this process can see."""
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(errors="replace")
            except OSError:
                continue
            # The command's name may hold spaces and parentheses; the fields go on after the last one.
            found[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    return found


def descendants(root: int | None = None) -> list[int]:
    """Process ids of all descendants of ``root`` (default: this process), parents before children."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)

    def below(pid: int) -> Iterator[int]:
        for child in sorted(children.get(pid, [])):
            yield child
            yield from below(child)

    return list(below(os.getpid() if root is None else root))


def environment(pid: int) -> dict[str, str]:
    """Environment that process ``pid`` was started with; empty if it is gone or not ours to read."""
    try:
        raw = Path("/proc", str(pid), "environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.decode(errors="replace").partition("=") for item in raw.split(b"\0") if b"=" in item)
    return {name: value for name, _, value in pairs}


def rank_of(pid: int) -> int | None:
    """Rank that process ``pid`` belongs to, or None for a process that is no rank's."""
    variables = environment(pid)
    for name in RANK_VARIABLES:
        if variables.get(name, "").isdigit():
            return int(variables[name])
    return None


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal; no if it is gone."""
    try:
        status = Path("/proc", str(pid), "status").read_text(errors="replace")
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone already."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def reap() -> dict[int, int]:
    """Exit statuses of all children that have ended since the last call (negative: the signal's number)."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def kill_descendants(deadline: float = 10.0) -> None:
    """Kill every descendant and wait until all are gone.

    The caller must be a subreaper: then whatever forks while the killing goes on turns up in the next round.
    Gives up after ``deadline`` seconds, which only a process in uninterruptible sleep can bring about.
    """
    until = time.monotonic() + deadline
    while time.monotonic() < until:
        remaining = descendants()
        for pid in remaining:
            send(pid, signal.SIGKILL)
        reap()
        if not remaining:
            return
        time.sleep(0.01)
