"""How large every worker's batch is (METHODS D.7, F)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from gradsieve_hvd.server.node_table import Node, NodeTable

USUAL_ANNOUNCEMENTS: Final = 10
"""Steps from one announcement of speeds to the next, unless a number is given."""
_FIRST_ANNOUNCEMENT = 3  # steps; what the first of them takes is not measured


class Shares(Protocol):
    """Says how large the next batches are."""

    def decide(self, table: NodeTable) -> dict[int, float]:
        """Return each active worker's next batch by rank, in nominal batches."""
        ...


@dataclass(frozen=True, slots=True)
class EqualShares:
    """A nominal batch for everybody."""

    def decide(self, table: NodeTable) -> dict[int, float]:
        """See `Shares`."""
        return {node.rank: 1.0 for node in table.active}


EQUAL_SHARES = EqualShares()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesBySpeed:
    """Batches in proportion to measured speed (LB-BSP), so that all take equally long.

    1. Speed is the lower median of samples per second over the last 7 iterations, and known after
       ``least_iterations``.
    2. Share = workers · speed / sum of speeds, within ``lowest`` and ``highest``.
    3. Shares change together, and only if one of them would by more than ``dead_band``.

    Gradients need no other weights: a push is the sum over its samples divided by the nominal batch.
    """

    lowest: float = 1 / 8
    highest: float = 3.0
    dead_band: float = 0.2
    least_iterations: int = 1

    def decide(self, table: NodeTable) -> dict[int, float]:
        """See `Shares`; shares stay as they are until every worker's speed is known."""
        present = {node.rank: node.share for node in table.active}
        speeds = {node.rank: self._speed(node) for node in table.active}
        known = {rank: speed for rank, speed in speeds.items() if speed is not None}
        if len(known) < len(speeds):
            return present
        return self._settled(present, self._wanted(known))

    def _wanted(self, speeds: dict[int, float]) -> dict[int, float]:
        mean = sum(speeds.values()) / len(speeds)
        return {rank: min(max(speed / mean, self.lowest), self.highest) for rank, speed in speeds.items()}

    def _settled(self, present: dict[int, float], wanted: dict[int, float]) -> dict[int, float]:
        return wanted if _differ(present, wanted, self.dead_band) else present

    def _speed(self, node: Node) -> float | None:
        return node.samples_per_second if node.clock >= self.least_iterations else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedShares(SharesBySpeed):
    """The same where all wait for the slowest, and a share that is off by a tenth costs everybody a tenth.

    2. What the bounds take from a share, or add to it, the others get, or give, in proportion to speed: all
       batches together keep their size.
    3. Shares that are all within ``dead_band`` of a nominal batch count as equal, as ranks that share cores
       seem to differ by as much; where they are not equal now, half of that. **(r)**
    4. Else shares change together, and only if one of them would by more than ``fine_band``.
    """

    fine_band: float = 0.05

    def _wanted(self, speeds: dict[int, float]) -> dict[int, float]:
        bounded: dict[int, float] = {}
        while True:
            free = {rank: speed for rank, speed in speeds.items() if rank not in bounded}
            scale = (len(speeds) - sum(bounded.values())) / sum(free.values()) if free else 0.0
            wanted = {rank: scale * speed for rank, speed in free.items()}
            high = {rank: self.highest for rank, share in wanted.items() if share > self.highest}
            low = {rank: self.lowest for rank, share in wanted.items() if share < self.lowest}
            if not high and not low:
                return {rank: bounded.get(rank, wanted.get(rank, 0.0)) for rank in speeds}
            # Those on one side only: what they leave or take may bring the others within their bound.
            above = sum(wanted[rank] - self.highest for rank in high)
            below = sum(self.lowest - wanted[rank] for rank in low)
            bounded |= high if above >= below else low

    def _settled(self, present: dict[int, float], wanted: dict[int, float]) -> dict[int, float]:
        equal = dict.fromkeys(wanted, 1.0)
        band = self.dead_band if present == equal else self.dead_band / 2
        if not _differ(equal, wanted, band):
            return equal
        return wanted if _differ(present, wanted, self.fine_band) else present


@dataclass(frozen=True, slots=True)
class AnnouncedShares:
    """Shares that are decided only when workers tell each other their speeds; see `announces`.

    rule: decides then. every: steps from one announcement to the next.
    """

    rule: Shares
    every: int

    def decide(self, table: NodeTable) -> dict[int, float]:
        """See `Shares`."""
        if announces(min((node.clock for node in table.active), default=0), self.every):
            return self.rule.decide(table)
        return {node.rank: node.share for node in table.active}


def announces(steps: int, every: int) -> bool:
    """Return whether workers tell each other their speeds after so many steps: after each ``every``, and
    after the third, as with one that is 4 times slower ten steps of equal batches take as long as thirty of
    balanced ones.
    """
    return steps % every == 0 or steps == _FIRST_ANNOUNCEMENT


def _differ(present: dict[int, float], wanted: dict[int, float], band: float) -> bool:
    return any(abs(wanted[rank] / share - 1) > band for rank, share in present.items())
