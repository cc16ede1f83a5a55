"""Stale synchronous parallel with a fixed (SSP) and with a dynamic bound (DSSP).

SSP: Ho et al., NIPS 2013. DSSP: Zhao et al., ICDCS 2019, algorithms 1 and 2. A worker's *lead* is its clock
minus the clock of the slowest worker; one that rests between two epochs holds nobody up **(r)**.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradsieve_hvd.server.events import Action, Event, Reply
from gradsieve_hvd.server.node_table import Node, NodeTable, Phase

from .asynchronous import release_each


@dataclass(frozen=True, slots=True)
class Stale:
    """As ASP, but a worker that leads by more than ``bound`` iterations waits for the slowest."""

    bound: int = 3

    def decide(self, table: NodeTable, event: Event) -> list[Action]:  # noqa: ARG002 - a mode's signature
        """See `gradsieve_hvd.server.node_table.Mode`."""
        slowest = _slowest_clock(table)
        allowed = [n.rank for n in table.in_phase(Phase.WAITING) if n.clock - slowest <= self.bound]
        return [*release_each(table), *map(Reply, allowed)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicStale:
    """As SSP with ``bound``, but the fastest worker may get extra iterations instead of waiting.

    1. A worker that leads by at most ``bound``, or has extra iterations left, goes on.
    2. Of the others only the one with the highest clock is given extra iterations, as many as let it wait
       least: r* = argmin_r min_q |A_f + r·I_f - (A_s + (q+1)·I_s)|, 0 <= r <= ``most_extra``, q >= 0, where A
       is the time of the last push and I the interval before it, of the fastest and of the slowest worker.
    3. No lead grows beyond ``bound + most_extra``.
    """

    bound: int = 3
    most_extra: int = 12

    def decide(self, table: NodeTable, event: Event) -> list[Action]:  # noqa: ARG002 - a mode's signature
        """See `gradsieve_hvd.server.node_table.Mode`."""
        actions = release_each(table)
        for node in table.in_phase(Phase.WAITING):
            if node.clock - _slowest_clock(table) <= self.bound:
                actions.append(Reply(node.rank))
            elif (extra := node.extra or self._granted(table, node)) > 0:
                actions.append(Reply(node.rank, extra=extra - 1))
        return actions

    def _granted(self, table: NodeTable, node: Node) -> int:
        if node.clock < max(each.clock for each in table.in_step):
            return 0
        slowest = min(table.in_step, key=lambda each: (each.clock, each.push_time))
        room = self.bound + self.most_extra + 1 - (node.clock - slowest.clock)
        if slowest.clock == 0:  # its interval is not known yet
            return 0
        return min(range(max(room, 0) + 1), key=lambda extra: (_wait(node, slowest, extra), extra))


def _slowest_clock(table: NodeTable) -> int:
    return min((node.clock for node in table.in_step), default=0)


def _wait(fastest: Node, slowest: Node, extra: int) -> float:
    """Return how far the fastest's push after ``extra`` iterations is from the slowest's nearest one."""
    end = fastest.push_time + extra * fastest.push_interval
    intervals = max(round((end - slowest.push_time) / slowest.push_interval), 1)
    return abs(end - slowest.push_time - intervals * slowest.push_interval)
