"""What the coordinator knows and has decided: a state machine without network, clock or processes.

::

    Waiting ──all registered──► Starting ──ranks run──► Running ──all ranks ended──► Succeeded | Failed
       ▲                            │                      │
       └── higher generation ── Lost ◄── a host was lost ──┘      a refused operation changes nothing
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from gradsieve_hvd.control.contract import (
    COMPRESSION,
    FAILED,
    FINAL_STATES,
    GLOO,
    LOST,
    RUNNING,
    STARTING,
    SUCCEEDED,
    WAITING,
)
from gradsieve_hvd.control.fields import OUT_OF_DATE, Refused
from gradsieve_hvd.control.measurements import Measurements
from gradsieve_hvd.control.messages import DENSITIES, Incarnation, Plan, Registration, Roster
from gradsieve_hvd.control.registry import Registry
from gradsieve_hvd.control.telemetry import RankTelemetry, Telemetry

_ACTIVE = (STARTING, RUNNING)


@dataclass(frozen=True)
class End:
    """How ranks ended.

    Attributes:
        status: exit status for the shell.
        message: one line that says why.
        by_program: whether the program ended them, or else what had to carry them.
    """

    status: int
    message: str
    by_program: bool = True


class JobStateMachine:
    """State of one job, from its first agent to its end.

    Args:
        clock: seconds; tells for how long hosts are missing, and how old a sample is.

    Attributes:
        registry: the agents.
        roster: who is to take part; None until it was set.
        plan: the ranks' plan; None until it was set.
        measured: its telemetry.
        refused_reports: how often telemetry was refused of which a host is not to speak.
        state: one of :data:`gradsieve_hvd.control.contract.STATES`.
        message: one line about the last change of the state.
        end: how the job ended; None before.
        lost_hosts: hosts whose loss ended the ranks, or that an elastic job goes on without.
        started_generation: the roster's generation when the ranks that run were started; None before.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = Registry(clock)
        self.roster: Roster | None = None
        self.plan: Plan | None = None
        self.measured = Measurements(clock)
        self.refused_reports = 0
        self.state = WAITING
        self.message = "waiting for a roster"
        self.end: End | None = None
        self.lost_hosts: tuple[str, ...] = ()
        self.started_generation: int | None = None
        self._used_up = False
        self._run_generation = -1

    @property
    def generation(self) -> int:
        """Generation of the roster; 0 without one."""
        return 0 if self.roster is None else self.roster.generation

    @property
    def active(self) -> bool:
        """Whether ranks run or are being started."""
        return self.state in _ACTIVE

    @property
    def may_start(self) -> bool:
        """Whether everybody is there and the roster's generation was neither run nor stopped."""
        return (
            self.state == WAITING
            and self.roster is not None
            and not self._used_up
            and not self.registry.missing()
        )

    @property
    def must_restart(self) -> bool:
        """Whether the ranks that run belong to a roster that another has replaced, not only extended."""
        return self.active and self._used_up

    def register(self, registration: Registration) -> None:
        """Take note of an agent.

        Raises:
            Fenced: it must end itself.
            Refused: it cannot take part as it is.
        """
        self.registry.register(registration)
        self._tell_who_is_missing()

    def disconnect(self, incarnation: Incarnation) -> None:
        """Take note that an agent has gone."""
        self.registry.disconnect(incarnation)
        self._tell_who_is_missing()

    def set_roster(self, roster: Roster) -> list[Incarnation]:
        """Let ``roster`` decide who takes part; returns the incarnations that are to be fenced.

        1. The same roster again changes nothing.
        2. A lower generation is refused; so is another roster of the same generation, once that has been
           started, except for hosts of a running elastic job.
        3. Running ranks are kept if the job is elastic and only hosts have changed (``must_restart``), or
           densities. Newcomers start as these ranks did, and get the plan with them.

        Raises:
            Refused: as above, or the job is over.
        """
        old = self.roster
        if roster == old:
            return []
        if self.state in FINAL_STATES:
            raise Refused(f"the job is over ({self.state}): no roster is accepted any more", OUT_OF_DATE)
        extends = old is not None and _only_hosts_differ(old, roster)
        if roster.generation < self.generation:
            raise Refused(
                f"roster of generation {roster.generation}: generation {self.generation} is in force",
                OUT_OF_DATE,
            )
        if old is not None and roster.generation == old.generation and not self._may_change(extends):
            raise Refused(
                f"another roster of generation {roster.generation}, which was started already: "
                "raise the generation",
                OUT_OF_DATE,
            )
        in_place = self.active and extends and not self._used_up
        self.roster = roster
        fenced = self.registry.adopt(roster)
        if in_place:
            self._run_generation = roster.generation
        elif self.active:
            self._used_up = True
        else:
            self.state, self._used_up, self.lost_hosts = WAITING, False, ()
        self._tell_who_is_missing()
        return fenced

    def set_plan(self, plan: Plan) -> None:
        """Let ``plan`` be what ranks get.

        Raises:
            Refused: a newer one is in force, or another of the same generation.
        """
        if self.plan is not None and plan != self.plan and plan.generation <= self.plan.generation:
            raise Refused(
                f"plan of generation {plan.generation}: generation {self.plan.generation} is in force",
                OUT_OF_DATE,
            )
        self.plan = plan

    def plan_for(self, host: str) -> Plan | None:
        """Return the plan for ``host``, on which rank 0 must be: from there the others get it.

        Raises:
            Refused: rank 0 is elsewhere (403).
        """
        self._demand_rank_zero(host, "plan for")
        return self.plan

    def take(self, host: str, telemetry: Telemetry) -> None:
        """Keep a sample that ``host`` reports.

        Raises:
            Refused: rank 0 is elsewhere, or a rank that it names (403), or the sample is of another
                generation (409).
        """
        with self._counting_refusals():
            self._demand_rank_zero(host, "telemetry from")
            self._demand_running(telemetry.generation)
            self.measured.take(host, telemetry)

    def take_ranks(self, incarnation: Incarnation, ranks: Sequence[RankTelemetry]) -> None:
        """Keep what the agent of a host reports of the ranks there.

        Raises:
            Refused: one of them is elsewhere (403), or of another generation, or another agent has this host
                (409).
        """
        with self._counting_refusals():
            if not self.registry.is_admitted(incarnation):
                raise Refused(
                    f"telemetry from {incarnation.host}: another agent takes part for this host", OUT_OF_DATE
                )
            for rank in ranks:
                self._demand_running(rank.generation)
            self.measured.take_ranks(incarnation.host, ranks)

    def start(self) -> Roster:
        """Waiting → Starting; returns what to start."""
        assert self.may_start
        assert self.roster is not None
        self.state, self.message = STARTING, f"starting {self.roster.size} ranks"
        self.started_generation = self._run_generation = self.roster.generation
        self.measured.begin([place.host for place in self.roster.hosts for _ in range(place.slots)])
        return self.roster

    def running(self) -> None:
        """Starting → Running."""
        if self.state == STARTING:
            self.state, self.message = RUNNING, "all ranks run"

    def lose(self, hosts: tuple[str, ...], message: str) -> None:
        """Starting or Running → Lost: the ranks were ended everywhere."""
        # A roster that came meanwhile has not been run yet, and is to be.
        newer = self.generation > self._run_generation
        self.state, self._used_up = (WAITING, False) if newer else (LOST, True)
        self.message, self.lost_hosts = message, hosts

    def stop(self, reason: str) -> None:
        """The generation was ended on request: nothing starts before a roster of a higher one."""
        if self.state not in FINAL_STATES:
            self.state, self._used_up, self.message = WAITING, True, f"stopped: {reason}"

    def restart(self) -> None:
        """The ranks were ended because another roster has come: that one is next."""
        self.state, self._used_up = WAITING, False
        self._tell_who_is_missing()

    def finish(self, end: End) -> None:
        """→ Succeeded or Failed, for good."""
        if self.end is None:
            self.state, self.message, self.end = SUCCEEDED if end.status == 0 else FAILED, end.message, end

    def _demand_rank_zero(self, host: str, what: str) -> None:
        if self.measured.hosts[:1] != (host,):
            raise Refused(f"{what} {host}: rank 0 is not there", 403)

    def _demand_running(self, generation: int) -> None:
        started = self.started_generation
        if started is None or not started <= generation <= self.generation:
            raise Refused(f"telemetry of generation {generation}: that is not running", OUT_OF_DATE)

    @contextmanager
    def _counting_refusals(self) -> Iterator[None]:
        try:
            yield
        except Refused as refusal:
            self.refused_reports += refusal.status != OUT_OF_DATE
            raise

    def _may_change(self, extends: bool) -> bool:
        if self.active:
            return extends
        return self.state == WAITING and not self._used_up

    def _tell_who_is_missing(self) -> None:
        if self.state == WAITING and self.roster is not None and not self._used_up:
            missing = self.registry.missing()
            self.message = f"waiting for {', '.join(missing[:10])}" if missing else "all agents are here"


def _only_hosts_differ(old: Roster, new: Roster) -> bool:
    same = replace(
        old,
        generation=new.generation,
        hosts=new.hosts,
        min_hosts=new.min_hosts,
        environment=new.environment,
    )
    alike = _without_densities(old.environment) == _without_densities(new.environment)
    return new.backend == GLOO and new == same and alike


def _without_densities(environment: Mapping[str, str]) -> dict[str, object]:
    """Return what of ranks' environment only another start can change: the plan carries the densities."""
    try:
        compression = json.loads(environment.get(COMPRESSION) or "{}")
    except (ValueError, RecursionError):
        return dict(environment)
    if not isinstance(compression, dict):
        return dict(environment)
    fixed = {name: value for name, value in compression.items() if name not in DENSITIES}
    return {**environment, COMPRESSION: fixed}
