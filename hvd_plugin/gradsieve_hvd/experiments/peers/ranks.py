"""A rank of a measurement: Horovod and ``torch.distributed`` side by side, and what its interface counts."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

from gradsieve_hvd.launcher import counters

_IDLE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Turn:
    """What a rank used between two moments: wall-clock seconds, processor seconds, and bytes."""

    seconds: float
    user_seconds: float
    system_seconds: float
    sent_bytes: float
    received_bytes: float


@dataclass
class Measured:
    """What one rank saw of a contender: of each counted round, the median step's seconds and the turn.

    steps: of a round. paths: that compressed gradients took at the end of each; empty where nobody knows.
    """

    steps: int
    step_seconds: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


class Ranks:
    """The process among the ranks that ``gradsieve run`` has started.

    rank, size: its number, and how many there are. idle_bytes_per_second: what its interface sends when
    nothing is trained: Horovod's chatter.
    """

    def __init__(self) -> None:
        import horovod.torch as hvd

        hvd.init()
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._linked = counters.INTERFACE_VARIABLE in os.environ
        self.barrier()
        self._idle = counters.idle_traffic(_IDLE_SECONDS) if self._linked else counters.Traffic(0.0, 0.0)
        self.idle_bytes_per_second = self._idle.sent
        self._began = self._now()

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value."""
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, value)
        return gathered

    def mean(self, value: float) -> float:
        """Return the mean over ranks."""
        return float(statistics.mean(self.gather(value)))

    def begin_turn(self) -> None:
        """Begin to measure, all ranks at once."""
        self.barrier()
        self._began = self._now()

    def end_turn(self) -> Turn:
        """Return what this rank has used since `begin_turn`; idle chatter is taken off the bytes, of which
        there are never less than none.
        """
        now = self._now()
        seconds, user, system, sent, received = (a - b for a, b in zip(now, self._began, strict=True))
        sent -= self._idle.sent * seconds
        received -= self._idle.received * seconds
        return Turn(seconds, user, system, max(sent, 0.0), max(received, 0.0))

    def close(self) -> None:
        """End together."""
        self.barrier()
        dist.destroy_process_group()

    def _now(self) -> tuple[float, float, float, float, float]:
        times = os.times()
        sent, received = counters.interface_bytes() if self._linked else (0.0, 0.0)
        return time.perf_counter(), times.user, times.system, sent, received
