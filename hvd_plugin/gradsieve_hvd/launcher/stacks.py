"""The Python stacks of all ranks, asked for from outside, one rank after the other."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from gradsieve_hvd.launcher.processes import descendants, handles, rank_of, send

_ANSWER_SECONDS = 3.0
_SETTLED_SECONDS = 0.1


def show_stacks(folder: Path) -> str:
    """Text with the stacks of every rank's Python processes.

    1. Every interpreter below a rank has left a file named by its process id in ``folder`` (see
       ``startup/sitecustomize.py``) and writes its stacks there on SIGUSR1. Nobody else is signalled, nor one
       that does not handle the signal (another program by now), since it would end.
    2. Wait until all have answered and none goes on writing; a stopped process does not answer.
    3. Show what was written since, by rank.
    """
    ranks = {pid: rank for pid in descendants() if (rank := rank_of(pid)) is not None}
    told = [pid for pid in ranks if handles(pid, signal.SIGUSR1)]
    before = {pid: size for pid in told if (size := _size(folder / str(pid))) is not None}
    for pid in before:
        send(pid, signal.SIGUSR1)
    _wait(folder, before)
    shown = []
    for rank in sorted(set(ranks.values())):
        members = [pid for pid in ranks if ranks[pid] == rank]
        answered = [_stack(folder, rank, pid, before[pid]) for pid in members if pid in before]
        shown += answered or [f"--- rank {rank}: no Python interpreter (processes {members})\n"]
    return "".join(shown)


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except OSError:
        return None


def _wait(folder: Path, before: dict[int, int]) -> None:
    until = time.monotonic() + _ANSWER_SECONDS
    last: list[int | None] = []
    while time.monotonic() < until:
        time.sleep(_SETTLED_SECONDS)
        sizes = [_size(folder / str(pid)) for pid in before]
        if sizes == last and all(now != then for now, then in zip(sizes, before.values(), strict=True)):
            return
        last = sizes


def _stack(folder: Path, rank: int, pid: int, start: int) -> str:
    with (folder / str(pid)).open(errors="replace") as file:
        file.seek(start)
        stack = file.read()
    return f"--- rank {rank}, process {pid}\n" + (
        stack or "no answer: it is stopped, or replaced its SIGUSR1 handler\n"
    )
