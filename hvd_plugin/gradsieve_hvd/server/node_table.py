"""The node table: what the decision-maker knows of every worker, and which pushes wait for a release.

It changes by events and by actions only, so that a mode, which reads it, can be a pure function.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from .events import Action, Continue, Discard, Event, Left, Pushed, Release, Reply, Rested, Resumed

_RECENT = 7  # iterations behind T_i (METHODS D.2)
_REMEMBERED = 50  # iterations behind the share of long ones (D.3) **(r)**


class Phase(Enum):
    """What a worker does."""

    COMPUTING = "computing"
    WAITING = "waiting"
    RESTING = "resting"
    GONE = "gone"


def lower_median(values: Sequence[float]) -> float:
    """Return the middle value, the lower one of two."""
    return sorted(values)[(len(values) - 1) // 2]


@dataclass(slots=True)
class Node:
    """One worker.

    version: of the weights that it has. clock: its pushes so far. began: when it was told to compute what it
    computes now. share: of the batches that it is dealt from now on, in nominal batches. dealt_share: of the
    one that it computes now or next, if that was dealt before; None if it is of ``share``. resumed: whether
    it has rested since its last push. pushed_at: version of that push, -1 before. extra: see `Reply`.
    push_time, push_interval: time of its last push, and since the one before (DSSP's A and I).
    """

    rank: int
    phase: Phase = Phase.WAITING
    version: int = 0
    clock: int = 0
    began: float = 0.0
    share: float = 1.0
    dealt_share: float | None = None
    resumed: bool = False
    pushed_at: int = -1
    extra: int = 0
    push_time: float = 0.0
    push_interval: float = 0.0
    _turnarounds: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _speeds: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))

    @property
    def iteration_seconds(self) -> float | None:
        """T_i: lower median of the last 7 iterations, for the present batch; None before the first."""
        known = self.nominal_seconds
        return None if known is None else known * self._present_share

    @property
    def nominal_seconds(self) -> float | None:
        """The same for a nominal batch."""
        return lower_median(self._recent()) if self._turnarounds else None

    @property
    def scatter(self) -> float:
        """Median absolute deviation of the last 7 iterations over their median."""
        recent = self._recent()
        middle = lower_median(recent)
        return lower_median([abs(each - middle) for each in recent]) / middle

    @property
    def samples_per_second(self) -> float | None:
        """Lower median of the last 7 iterations' speeds of computing; None before the first."""
        return lower_median(self._speeds) if self._speeds else None

    def iterations_above(self, seconds: float) -> tuple[int, int]:
        """Return how many of the remembered iterations took longer, and how many are remembered."""
        per_batch = seconds / self._present_share
        return sum(each > per_batch for each in self._turnarounds), len(self._turnarounds)

    def record_push(self, push: Pushed) -> None:
        """Take note of a finished iteration."""
        share = self._present_share if push.share is None else push.share
        self._turnarounds.append((push.now - self.began) / share)
        self.dealt_share = push.next_share
        self._speeds.append(push.samples / push.seconds)
        self.phase, self.resumed = Phase.WAITING, False
        self.clock += 1
        self.pushed_at = push.version
        self.push_interval = push.now - self.push_time
        self.push_time = push.now

    @property
    def _present_share(self) -> float:
        return self.share if self.dealt_share is None else self.dealt_share

    def _recent(self) -> list[float]:
        return list(self._turnarounds)[-_RECENT:]


class NodeTable:
    """All workers, the newest version, and the pushes that no release has taken yet, in order of arrival.

    nodes: by rank. version: of the newest weights. released: when that version was made.
    """

    def __init__(self, workers: int) -> None:
        self.nodes = [Node(rank) for rank in range(workers)]
        self.version = 0
        self.released = 0.0
        self.pending: dict[int, Pushed] = {}

    @property
    def active(self) -> list[Node]:
        """Workers that have not left."""
        return [node for node in self.nodes if node.phase is not Phase.GONE]

    @property
    def in_step(self) -> list[Node]:
        """Workers that push sooner or later, whatever the others do: neither gone nor resting."""
        return [node for node in self.active if node.phase is not Phase.RESTING]

    def in_phase(self, phase: Phase) -> list[Node]:
        """Return the workers that do this."""
        return [node for node in self.nodes if node.phase is phase]

    def record(self, event: Event) -> None:
        """Take note of what has happened, before a mode is asked."""
        match event:
            case Pushed():
                self.pending[event.number] = event
                self.nodes[event.rank].record_push(event)
            case Left():
                self.nodes[event.rank].phase = Phase.GONE
            case Rested():
                self.nodes[event.rank].phase = Phase.RESTING
            case Resumed():
                node = self.nodes[event.rank]
                node.phase, node.began, node.resumed = Phase.COMPUTING, event.now, True

    def apply(self, action: Action, now: float) -> None:
        """Take note of what is done, in the order of the actions."""
        match action:
            case Release():
                self.version += 1
                self.released = now
                for contribution in action.contributions:
                    del self.pending[contribution.number]
            case Discard():
                del self.pending[action.number]
            case Reply():
                node = self._begins(action.rank, now)
                node.version, node.share, node.extra = self.version, action.share, action.extra
            case Continue():
                self._begins(action.rank, now)

    def _begins(self, rank: int, now: float) -> Node:
        node = self.nodes[rank]
        assert node.phase is Phase.WAITING, f"rank {rank} is {node.phase.value} and gets an answer"
        node.phase, node.began = Phase.COMPUTING, now
        return node


class Mode(Protocol):
    """A parallel mode; pure: its state is in the table, what it consists of are settings."""

    def decide(self, table: NodeTable, event: Event) -> list[Action]:
        """Return what is to be done, in order; ``table`` knows of ``event`` already and is not mutated."""
        ...


def take_turn(table: NodeTable, mode: Mode, event: Event) -> list[Action]:
    """Record an event, ask the mode, record its actions in the table and return them to be carried out."""
    table.record(event)
    actions = mode.decide(table, event)
    for action in actions:
        table.apply(action, event.now)
    return actions
