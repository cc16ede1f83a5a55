"""Workers on a scripted clock for the parallel modes: who computes how long is said beforehand."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from gradsieve_hvd.server.events import (
    Action,
    Continue,
    Discard,
    Event,
    Left,
    Pushed,
    Release,
    Reply,
    Started,
    WakeAt,
    Woke,
)
from gradsieve_hvd.server.node_table import Mode, NodeTable, take_turn

SAMPLES = 100
Durations = Callable[[int, int], float]


def cycle(*of_ranks: float | Sequence[float]) -> Durations:
    """Return each rank's durations: a number for always, or a list that is repeated."""

    def seconds(rank: int, clock: int) -> float:
        given = of_ranks[rank]
        return given if isinstance(given, int | float) else given[clock % len(given)]

    return seconds


@dataclass
class Script:
    """Plays a mode.

    seconds: by rank and clock, of a nominal batch. leaves_after: pushes after which a rank leaves.
    log: (time, event, actions). missed: releases that every applied push has missed, by its number.
    """

    mode: Mode
    ranks: int
    seconds: Durations
    leaves_after: dict[int, int] = field(default_factory=dict)
    log: list[tuple[float, Event, list[Action]]] = field(default_factory=list)
    pushes: dict[int, Pushed] = field(default_factory=dict)
    missed: dict[int, int] = field(default_factory=dict)
    discarded: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.table = NodeTable(self.ranks)
        self._queue: list[tuple[float, int, Event]] = []
        self._order = count()
        self._wake: Woke | None = None
        self._put(Started(0.0))

    def run(self, until: float) -> Script:
        """Play until this time."""
        while self._queue and self._queue[0][0] <= until:
            time, _, event = heapq.heappop(self._queue)
            if isinstance(event, Woke) and event is not self._wake:
                continue
            if isinstance(event, Pushed):
                self.pushes[event.number] = event
            before = self.table.version
            actions = take_turn(self.table, self.mode, event)
            self.log.append((time, event, actions))
            for action in actions:
                before = self._carry_out(action, time, before)
        return self

    def releases(self) -> list[tuple[float, Release]]:
        """Return the times of all releases, and what they are made of."""
        return [(time, each) for time, _, acts in self.log for each in acts if isinstance(each, Release)]

    def contributors(self) -> list[list[int]]:
        """Return the ranks behind every release, sorted."""
        return [
            sorted(self.pushes[each.number].rank for each in release.contributions)
            for _, release in self.releases()
        ]

    def replies(self, rank: int) -> list[tuple[float, Reply | Continue]]:
        """Return when a rank was told to go on, and how."""
        return [
            (time, each)
            for time, _, acts in self.log
            for each in acts
            if isinstance(each, Reply | Continue) and each.rank == rank
        ]

    def _carry_out(self, action: Action, time: float, version: int) -> int:
        match action:
            case Release():
                for each in action.contributions:
                    assert each.number not in self.missed
                    self.missed[each.number] = version - self.pushes[each.number].version
                return version + 1
            case Discard():
                self.discarded.append(action.number)
            case Reply() | Continue():
                self._begin(action.rank, time)
            case WakeAt():
                assert action.time > time
                self._wake = Woke(action.time)
                self._put(self._wake)
        return version

    def _begin(self, rank: int, time: float) -> None:
        node = self.table.nodes[rank]
        seconds = self.seconds(rank, node.clock) * node.share
        if node.clock >= self.leaves_after.get(rank, node.clock + 1):
            self._put(Left(time + seconds / 2, rank))
            return
        samples = round(SAMPLES * node.share)
        self._put(Pushed(time + seconds, next(self._order), rank, node.version, samples, seconds))

    def _put(self, event: Event) -> None:
        heapq.heappush(self._queue, (event.now, next(self._order), event))
