"""Asynchronous parallel (ASP): nobody waits."""

from __future__ import annotations

from dataclasses import dataclass

from gradsieve_hvd.server.events import Action, Contribution, Event, Release, Reply
from gradsieve_hvd.server.node_table import NodeTable, Phase


def release_each(table: NodeTable) -> list[Action]:
    """Return a release for every pending push, by itself."""
    return [Release((Contribution(number),)) for number in table.pending]


@dataclass(frozen=True, slots=True)
class Asynchronous:
    """Every push makes a version, and its worker goes on with it at once."""

    def decide(self, table: NodeTable, event: Event) -> list[Action]:  # noqa: ARG002 - a mode's signature
        """See `gradsieve_hvd.server.node_table.Mode`."""
        return [*release_each(table), *(Reply(node.rank) for node in table.in_phase(Phase.WAITING))]
