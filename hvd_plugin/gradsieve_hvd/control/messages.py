"""What agents, ranks and operator may say to the coordinator: validated records without behaviour."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gradsieve_hvd.control.contract import GLOO, MPI, PROTOCOL
from gradsieve_hvd.control.fields import Fields, Refused

MOST_HOSTS = 4096
MOST_RANKS = 16384
MOST_GENERATION = 2**53 - 1
_MOST_SLOTS = 1024
_MOST_MACHINE = 64  # HOST_NAME_MAX of Linux
_MOST_PLAN_FIELDS = 64
DENSITIES = ("densityPermille", "minDensityPermille", "maxDensityPermille")
"""Fields of a plan, by which ranks change their densities while they run."""

# As for a DNS label, or several joined by dots; nothing that a shell, a path or a URL would read otherwise.
_NAME = re.compile(r"[a-z0-9A-Z]([a-z0-9A-Z._-]{0,251}[a-z0-9A-Z])?")
_UID = re.compile(r"[0-9a-zA-Z-]{1,64}")


def host_field(fields: Fields, name: str = "host") -> str:
    """A host's name: letters, digits, dots, dashes.

    Raises:
        Refused: it is none.
    """
    host = fields.text(name, most=253)
    if not _NAME.fullmatch(host):
        fields.refuse(name, "a host name of letters, digits, dots and dashes")
    return host


def _uid_field(fields: Fields, *, empty: bool = False) -> str:
    uid = fields.text("podUID", most=64, empty=empty)
    if uid and not _UID.fullmatch(uid):
        fields.refuse("podUID", "letters, digits and dashes")
    return uid


def generation_field(fields: Fields) -> int:
    """A generation of the job, or of what it carries.

    Raises:
        Refused: it is none.
    """
    return fields.integer("generation", 0, MOST_GENERATION)


@dataclass(frozen=True, order=True)
class Incarnation:
    """One life of a host: a pod, or an agent process; what comes after it on the same host is another.

    Attributes:
        host: the host's name.
        uid: the pod's UID, or what an agent outside Kubernetes drew by lot when it started.
    """

    host: str
    uid: str


@dataclass(frozen=True)
class Registration:
    """The first message of an agent.

    Attributes:
        incarnation: who it is; the host is the one its certificate names.
        generation: generation of the job for which its pod was created; 0 outside Kubernetes.
        slots: how many ranks it takes.
        gpus: names of its GPUs.
        group: its worker group; empty outside Kubernetes.
        runs: what it still runs or has run without having told: run id -> exit status, None while it runs.
        machine: name of its machine's kernel; empty if it does not say.
    """

    incarnation: Incarnation
    generation: int
    slots: int
    gpus: tuple[str, ...] = ()
    group: str = ""
    runs: dict[str, int | None] = field(default_factory=dict)
    machine: str = ""

    @classmethod
    def read(cls, fields: Fields) -> Registration:
        """The registration in ``fields``.

        Raises:
            Refused: a field does not fit, or the agent speaks another version of the protocol.
        """
        if fields.text("type", most=32) != "register":
            fields.refuse("type", "'register' in an agent's first message")
        if fields.integer("protocol", 0, 1 << 30) != PROTOCOL:
            fields.refuse("protocol", f"{PROTOCOL}: use the same gradsieve for agents and coordinator")
        runs = fields.objects("runs", MOST_RANKS) if "runs" in fields else []
        return cls(
            Incarnation(host_field(fields), _uid_field(fields)),
            generation_field(fields),
            fields.integer("slots", 1, _MOST_SLOTS),
            fields.texts("gpus", 64) if "gpus" in fields else (),
            fields.text("group", most=63, empty=True) if "group" in fields else "",
            {
                run.text("id", most=64): run.integer("status", 0, 255) if "status" in run else None
                for run in runs
            },
            fields.text("machine", most=_MOST_MACHINE, empty=True) if "machine" in fields else "",
        )


@dataclass(frozen=True)
class Place:
    """A host of a roster.

    Attributes:
        host: its name.
        uid: the one incarnation that may take part; empty: the first that registers.
        slots: how many ranks it gets.
    """

    host: str
    uid: str
    slots: int


@dataclass(frozen=True)
class Roster:
    """Who takes part, and in what: the only source of commands.

    Attributes:
        generation: grows with every change that must not be undone by an older one.
        command: program and arguments of every rank.
        backend: ``MPI`` or ``Gloo``.
        hosts: in order of the ranks; names are unique.
        environment: for every rank, on top of its agent's.
        min_hosts: with how many hosts an elastic job goes on; all of them if it is None.
    """

    generation: int
    command: tuple[str, ...]
    backend: str
    hosts: tuple[Place, ...]
    environment: dict[str, str] = field(default_factory=dict)
    min_hosts: int | None = None

    @classmethod
    def read(cls, fields: Fields) -> Roster:
        """The roster in ``fields``.

        Raises:
            Refused: a field does not fit, or a host is named twice.
        """
        backend = fields.text("backend", most=16)
        if backend not in (MPI, GLOO):
            fields.refuse("backend", f"{MPI} or {GLOO}")
        command = fields.texts("command", 4096, least=1)
        if not command[0]:
            fields.refuse("command", "a program and its arguments")
        hosts = tuple(
            Place(host_field(host), _uid_field(host), host.integer("slots", 1, _MOST_SLOTS))
            for host in fields.objects("hosts", MOST_HOSTS, least=1)
        )
        if len({place.host for place in hosts}) != len(hosts):
            raise Refused("roster: a host is named twice")
        return cls(
            generation_field(fields),
            command,
            backend,
            hosts,
            fields.mapping("env", 4096) if "env" in fields else {},
            fields.integer("minHosts", 1, len(hosts)) if "minHosts" in fields else None,
        )

    @property
    def names_incarnations(self) -> bool:
        """Whether every host's incarnation is given: by the operator; not for plain hosts."""
        return all(place.uid for place in self.hosts)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(place.slots for place in self.hosts)

    @property
    def fewest_ranks(self) -> int:
        """Number of ranks with which an elastic job goes on, whichever hosts it loses."""
        slots = sorted(place.slots for place in self.hosts)
        return sum(slots if self.min_hosts is None else slots[: self.min_hosts])


@dataclass(frozen=True)
class Plan:
    """How the ranks should compress; what the fields mean is between operator and ranks.

    Attributes:
        generation: grows with every change.
        fields: the whole plan as it was sent, its generation included.
    """

    generation: int
    fields: dict[str, str | int | bool | None]

    @classmethod
    def read(cls, fields: Fields) -> Plan:
        """The plan in ``fields``.

        Raises:
            Refused: it is nested, too large, or a density is no whole number from 1 to 1000.
        """
        for name in DENSITIES:
            if name in fields:
                fields.integer(name, 1, 1000)
        return cls(generation_field(fields), fields.scalars(_MOST_PLAN_FIELDS))
