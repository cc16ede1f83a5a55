"""Rosters for plain hosts, where no operator says who takes part: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.control.contract import MPI
from gradsieve_hvd.control.fields import Fields, Refused
from gradsieve_hvd.control.job_state_machine import JobStateMachine
from gradsieve_hvd.control.messages import MOST_HOSTS, Place, Roster, host_field


def parse_hosts(text: str) -> tuple[Place, ...]:
    """The hosts in ``h1:2,h2:2`` (a name without a number has one slot), open to whoever registers first.

    Raises:
        ConfigurationError: a name or a number of slots is wrong, or a host is named twice.
    """
    places = []
    for word in text.split(","):
        host, _, slots = word.strip().partition(":")
        if slots and not (slots.isdecimal() and 0 < int(slots) <= 1024):
            raise ConfigurationError(f"--hosts: {word!r} must be NAME:SLOTS with 1 to 1024 slots")
        try:
            places.append(Place(host_field(Fields({"host": host}, "--hosts")), "", int(slots or 1)))
        except Refused as error:
            raise ConfigurationError(str(error)) from error
    if not len({place.host for place in places}) == len(places) <= MOST_HOSTS:
        raise ConfigurationError(f"--hosts: {text!r} names a host twice, or more than {MOST_HOSTS} hosts")
    return tuple(places)


@dataclass
class Restarts:
    """Decides how a job on plain hosts goes on when hosts were lost.

    Attributes:
        left: how often it may start anew.
    """

    left: int

    def __call__(self, job: JobStateMachine, lost: Sequence[str]) -> Roster | None:
        """The roster with which to go on after hosts were ``lost``, or None if there is to be none.

        1. Survivors keep their places and their agents.
        2. With ``min_hosts`` an MPI job goes on without the lost hosts, if enough are left.
        3. Otherwise their places are open to new agents on hosts of the same names; an elastic job does not
           wait for them, unless too few hosts are left.
        """
        roster = job.roster
        if roster is None or self.left == 0:
            return None
        self.left -= 1
        survivors = [place for place in roster.hosts if place.host not in lost]
        enough = roster.min_hosts is not None and len(survivors) >= roster.min_hosts
        hosts = survivors if enough and roster.backend == MPI else list(roster.hosts)
        places = [
            replace(place, uid="" if place.host in lost else job.registry.uid(place.host)) for place in hosts
        ]
        return replace(roster, generation=roster.generation + 1, hosts=tuple(places))
