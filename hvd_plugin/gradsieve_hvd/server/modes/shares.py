"""How large every worker's batch is (METHODS D.7, F)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gradsieve_hvd.server.node_table import Node, NodeTable


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
        total = sum(known.values())
        wanted = {
            rank: min(max(len(known) * speed / total, self.lowest), self.highest)
            for rank, speed in known.items()
        }
        if all(abs(wanted[rank] / share - 1) <= self.dead_band for rank, share in present.items()):
            return present
        return wanted

    def _speed(self, node: Node) -> float | None:
        return node.samples_per_second if node.clock >= self.least_iterations else None
