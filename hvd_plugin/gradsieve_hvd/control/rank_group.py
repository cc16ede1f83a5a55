"""The ranks of one generation, as the coordinator sees them, whatever starts them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gradsieve.errors import LaunchError
from gradsieve_hvd.control.agents import Agents
from gradsieve_hvd.control.children import Output
from gradsieve_hvd.control.contract import JOB_GENERATION
from gradsieve_hvd.control.job_state_machine import End
from gradsieve_hvd.control.messages import Roster
from gradsieve_hvd.control.registry import Registry

START_SECONDS = 180.0
"""From the start until every rank's process runs; importing comes after that and does not count."""

_log = logging.getLogger("gradsieve.coordinator")


@dataclass(frozen=True)
class Setting:
    """What a group of ranks is started from.

    Attributes:
        roster: who takes part, and in what.
        agents: reach the hosts.
        registry: knows which incarnation of each host is admitted.
        output: takes what the ranks write, prefixed with their numbers.
        running: to be called when all ranks run.
        assigned: to be called with the hosts of all ranks, by rank, whenever an elastic job's ranks were
            numbered: what was lost before does not matter any more.
    """

    roster: Roster
    agents: Agents
    registry: Registry
    output: Output
    running: Callable[[], None]
    assigned: Callable[[Sequence[str]], None]

    def variables(self) -> dict[str, str]:
        """Environment of every rank, on top of its agent's."""
        return {**self.roster.environment, JOB_GENERATION: str(self.roster.generation)}


class RankGroup(Protocol):
    """Ranks that are started together.

    Attributes:
        survives_lost_hosts: whether the others go on when a host is lost.
    """

    survives_lost_hosts: bool

    async def run(self) -> End:
        """Start the ranks and wait for all of them; returns how they ended."""

    async def end(self) -> None:
        """End what runs on this machine for them; the hosts' agents end the rest."""

    def hosts_changed(self, roster: Roster) -> None:
        """Another roster is in force, or a host came or went; also called before the start."""

    def host_lost(self) -> None:
        """A host was lost; only called if the others go on."""


def failure(error: Exception) -> End:
    """The end of ranks that ``error`` kept from being run; the log gets where, if it is unforeseen."""
    if isinstance(error, LaunchError):
        return End(1, str(error))
    _log.error("the ranks could not be run", exc_info=error)
    return End(1, f"{type(error).__name__}: {error}")
