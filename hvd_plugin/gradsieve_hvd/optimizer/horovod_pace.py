"""Horovod's own messages, kept small beside gradients that something else carries."""

from __future__ import annotations

import itertools
import logging
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable

from gradsieve_hvd.transport import horovod_cycle
from gradsieve_hvd.transport.horovod import carries_gradients

from .connection import Connection
from .counted_transport import CountedTransport

_log = logging.getLogger("gradsieve.transport")

_ROUNDS = 20
_TELLING_BYTES = 65_536  # of fewer, start-up and waiting for the other ranks are most of the time
_LOOK_BYTES = 100  # of a look, per rank and doubling of ranks: 200 kB/s of four ranks that look every ms
_PART = 0.01  # of the link
_USUAL_MS, _LONGEST_MS = 1.0, 20.0
_PART_OF_A_STEP = 0.02  # that an `hvd.allreduce` in every step may wait for the next look
_WORTH_CHANGING = 1.3  # times as long, or as short


class HorovodPace:
    """Has Horovod's background thread look for work as often as the link allows.

    1. Take the second best rate at which a bucket has travelled in 20 rounds: in most a rank was waited for,
       and after a pause one may fit into a shaper's burst.
    2. Looks may take a hundredth of that; the time between two is between 1 ms, Horovod's own, and 20 ms, and
       at most a fiftieth of a step, so that what a program sends through Horovod hardly makes steps longer.
    3. Ranks look together, so that the one with the slowest link decides.

    Horovod's own time comes back with the end of this object.

    Args:
        connection: to the ranks. Where Horovod carries gradients itself, nothing is slowed.
        clock: in seconds.
    """

    def __init__(self, connection: Connection, clock: Callable[[], float] = time.monotonic) -> None:
        self._connection, self._clock = connection, clock
        self._rates: deque[float] = deque(maxlen=_ROUNDS)
        self._ended: deque[float] = deque(maxlen=_ROUNDS)
        self._cycle_ms = _USUAL_MS
        self._able: bool | None = None

    def end_round(self, transports: Iterable[CountedTransport]) -> None:
        """A round's buckets have arrived, each by its transport."""
        if self._able is False or self._connection.transport.size == 1:
            return
        rates = [
            each.sent_bytes / (each.heard - each.sent_at)
            for each in transports
            if each.sent_bytes >= _TELLING_BYTES and each.heard > each.sent_at
        ]
        self._ended.append(self._clock())
        if rates:
            self._rates.append(max(rates))
        if len(self._rates) == _ROUNDS == len(self._ended):
            step = min(after - before for before, after in itertools.pairwise(self._ended))
            self._follow(sorted(self._rates)[-2], step)

    def _follow(self, rate: float, step: float) -> None:
        ranks = self._connection.transport
        wanted = max(min(cycle_for(rate, ranks.size), 1e3 * _PART_OF_A_STEP * step), _USUAL_MS)
        if 1 / _WORTH_CHANGING < wanted / self._cycle_ms < _WORTH_CHANGING:
            return
        if self._able is None:
            self._able = not carries_gradients(ranks) and horovod_cycle.can_be_slowed()
            if not self._able:
                return
            weakref.finalize(self, horovod_cycle.look_at_most_every, 0.0)
        self._cycle_ms = wanted
        horovod_cycle.look_at_most_every(wanted)
        if ranks.rank == 0:
            _log.info(
                "gradients travel at %.3g Mbit/s; Horovod's background thread, which does not carry them, "
                "looks for work every %.1f ms (HOROVOD_CYCLE_TIME sets another time)",
                8e-6 * rate,
                wanted,
            )


def cycle_for(rate: float, ranks: int) -> float:
    """Return the milliseconds between two looks if these may take a hundredth of a link.

    rate: of the link, in bytes a second.
    """
    per_look = _LOOK_BYTES * math.ceil(math.log2(ranks))
    return min(max(1e3 * per_look / (_PART * rate), _USUAL_MS), _LONGEST_MS)
