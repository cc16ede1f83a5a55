"""Bulk synchronous parallel (BSP), and with shares by speed LB-BSP (METHODS F)."""

from __future__ import annotations

from dataclasses import dataclass

from gradsieve_hvd.server.events import Action, Contribution, Event, Release, Reply
from gradsieve_hvd.server.node_table import NodeTable, Phase

from .shares import EQUAL_SHARES, Shares


@dataclass(frozen=True, slots=True)
class Synchronous:
    """Everybody waits for everybody: a version is made when no worker computes any more, of all pushes. Who
    rests between two epochs holds nobody up, and comes back with the weights that it has **(r)**.

    shares: how large the batches are.
    """

    shares: Shares = EQUAL_SHARES

    def decide(self, table: NodeTable, event: Event) -> list[Action]:  # noqa: ARG002 - a mode's signature
        """See `gradsieve_hvd.server.node_table.Mode`."""
        if table.in_phase(Phase.COMPUTING):
            return []
        made = [Release(tuple(map(Contribution, table.pending)))] if table.pending else []
        shares = self.shares.decide(table)
        return [*made, *(Reply(node.rank, shares[node.rank]) for node in table.in_phase(Phase.WAITING))]
