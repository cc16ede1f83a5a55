"""The coordinator of a job: takes agents in, starts the ranks when all are there, and tells what happens."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from gradsieve_hvd.control.agent_connection import AgentConnection
from gradsieve_hvd.control.agents import Agents
from gradsieve_hvd.control.children import Children, Output
from gradsieve_hvd.control.contract import (
    CLOSE_REPLACED,
    GLOO,
    LOST,
    RANK_SAMPLES,
    SAMPLES_REFUSED,
    TAKES_SAMPLES,
)
from gradsieve_hvd.control.fencing import END_SECONDS, Fencing
from gradsieve_hvd.control.fields import OUT_OF_DATE, Fields, Refused
from gradsieve_hvd.control.job_state_machine import End, JobStateMachine
from gradsieve_hvd.control.messages import Incarnation, Registration, Roster
from gradsieve_hvd.control.mpi_ranks import MpiRanks
from gradsieve_hvd.control.rank_group import RankGroup, Setting, failure
from gradsieve_hvd.control.status import status_json
from gradsieve_hvd.control.telemetry import read_report

_Work = TypeVar("_Work")
_STOP_SECONDS = 20.0
_log = logging.getLogger("gradsieve.coordinator")

NextRoster = Callable[[JobStateMachine, Sequence[str]], Roster | None]
"""Says with which roster to go on when hosts were lost; None to give up."""


class Coordinator:
    """One job, from the first agent to its end.

    Args:
        folder: its own temporary folder.
        output: takes what the ranks write.
        next_roster: for plain hosts; None if an operator sends rosters.

    Attributes:
        job: the job's state.
        started_at: when ranks were started, RFC 3339, the last time last.
        seen: set once the operator has been told the end.
    """

    def __init__(self, folder: Path, output: Output, next_roster: NextRoster | None = None) -> None:
        self.job = JobStateMachine()
        self.started_at: list[str] = []
        self.seen = asyncio.Event()
        self._agents = Agents(self._lost)
        self._fencing = Fencing(self._agents)
        self._children = Children()
        self._folder = folder
        self._output = output
        self._next_roster = next_roster
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stop_reason = ""
        self._lost_now: list[str] = []
        self._to_reopen: list[str] = []
        self._ranks: RankGroup | None = None

    async def serve(self, register_seconds: float | None = None) -> End:
        """Run generation after generation, until the job has ended.

        Args:
            register_seconds: how long to wait at most for all hosts of a roster; None: as long as it takes.
        """
        while self.job.end is None:
            if self.job.may_start:
                await self._run_generation()
            elif not await self._may_go_on(register_seconds):
                self.job.finish(End(1, f"{self.job.message} for {register_seconds:.0f} s: giving up"))
        _log.info("%s: %s", self.job.state, self.job.message)
        return self.job.end

    async def terminate(self) -> None:
        """End the ranks, because this process is told to end; those that do not are left to their agents."""
        try:
            await self.stop("the coordinator was told to end")
        except TimeoutError:
            _log.error("some ranks have not ended after %.0f s: their agents go on", _STOP_SECONDS)

    async def close(self, status: int) -> None:
        """Tell the agents that the job is over."""
        for who in list(self.job.registry.connected):
            if (connection := self._agents.connection(who)) is not None:
                await connection.send({"type": "over", "status": status})
        await self._children.end()
        self._children.close()

    async def set_roster(self, roster: Roster) -> None:
        """Let ``roster`` decide who takes part, and fence whom it does not name any more."""
        before = self.job.roster
        fenced = self.job.set_roster(roster)
        if roster != before:
            _log.info("roster of generation %d: %d hosts", roster.generation, len(roster.hosts))
        for who in fenced:
            self._fencing.fence(who)
        self._changed.set()

    async def agent_registered(self, registration: Registration, connection: AgentConnection) -> None:
        """Take an agent in, or raise :class:`Refused`."""
        self.job.register(registration)
        who = registration.incarnation
        _log.info("host %s registered (%s, %d slots)", who.host, who.uid, registration.slots)
        self._fencing.heard(who)
        old = self._agents.connected(registration, connection)
        await connection.send({"type": "registered", TAKES_SAMPLES: 1})
        if old is not None:
            await old.close(CLOSE_REPLACED, "replaced by a newer connection")
        if self.job.started_generation is not None or not self._may_take_part(who):
            await self._agents.end_unknown(registration)
        self._changed.set()

    def _may_take_part(self, incarnation: Incarnation) -> bool:
        """Whether its ranks may train on under a new coordinator, until that can start the job anew."""
        return self.job.roster is None or self.job.registry.is_admitted(incarnation)

    def agent_message(self, incarnation: Incarnation, fields: Fields) -> Mapping[str, Any] | None:
        """Take a message of a registered agent, or raise :class:`Refused`; returns what to answer.

        Samples that are refused cost the agent no more than an answer: its ranks train on. Those that come
        too late, of ranks that are over, not even that.
        """
        if fields.text("type", most=32) != RANK_SAMPLES:
            self._agents.message(incarnation, fields)
            return None
        try:
            self.job.take_ranks(incarnation, read_report(fields, incarnation.host))
        except Refused as error:
            if error.status == OUT_OF_DATE:
                return None
            _log.warning("refused: %s", error)
            return {"type": SAMPLES_REFUSED, "reason": str(error)}
        return None

    def agent_gone(self, incarnation: Incarnation, connection: AgentConnection, *, left: bool) -> None:
        """A registered agent's connection has ended; it ``left`` if it said so."""
        if connection.silent and self.job.active:
            self._fencing.silent(incarnation, connection.heard)
        if self.job.end is None:
            self._agents.disconnected(incarnation, connection, left=left)

    async def stop(self, reason: str) -> None:
        """End the ranks of the current generation; nothing starts before a roster of a higher one."""
        if self._idle.is_set():
            self.job.stop(reason)
        else:
            self._stop_reason = reason
            self._changed.set()
            async with asyncio.timeout(_STOP_SECONDS):
                await self._idle.wait()

    def status(self) -> dict[str, Any]:
        """The job's state, which the operator now gets to know."""
        if self.job.end is not None:
            self.seen.set()
        return status_json(self.job, self.started_at[-1] if self.started_at else None)

    async def _run_generation(self) -> None:
        self._idle.clear()
        self._stop_reason, self._lost_now, self._to_reopen = "", [], []
        roster = self.job.start()
        self.started_at.append(datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        _log.info("generation %d: starting %d ranks (%s)", roster.generation, roster.size, roster.backend)
        try:
            try:
                end = await self._start_and_watch(roster)
            except Exception as error:  # noqa: BLE001 - Horovod's runner raises what it likes
                end = failure(error)
            gone = await self._end_on_hosts(self.job.roster or roster)
            await self._conclude(end, gone)
        finally:
            self._agents.forget_runs()
            self._ranks = None
            self._idle.set()

    def _group(self, roster: Roster) -> RankGroup:
        setting = Setting(
            roster, self._agents, self.job.registry, self._output, self._all_run, self._assigned
        )
        if roster.backend == GLOO:
            # Horovod's runner takes half a second to import, and needs not be installed for MPI programs.
            from gradsieve_hvd.control.gloo_ranks import GlooRanks

            return GlooRanks(setting)
        return MpiRanks(setting, self._children, self._folder)

    async def _start_and_watch(self, roster: Roster) -> End | None:
        """Start the ranks and wait for their end; returns how they ended, None if they had to.

        What must end before its ranks are started never starts them.
        """
        ranks = self._ranks = self._group(roster)
        freeing = asyncio.create_task(self._free_hosts(roster))
        await self._done_or_must_end(freeing, ranks)
        freeing.cancel()
        if self._must_end(ranks):
            return None
        running = asyncio.create_task(ranks.run())
        try:
            return await self._done_or_must_end(running, ranks)
        finally:
            await ranks.end()
            await asyncio.wait({running}, timeout=END_SECONDS)
            running.cancel()

    async def _free_hosts(self, roster: Roster) -> None:
        await self._fencing.over()
        # What an earlier coordinator has started may still run there.
        await self._end_on_hosts(roster)

    async def _done_or_must_end(self, work: asyncio.Task[_Work], ranks: RankGroup) -> _Work | None:
        """Wait for ``work``; None if the ranks must end before it is done."""
        while not work.done() and not self._must_end(ranks):
            self._changed.clear()
            if self.job.roster is not None:
                ranks.hosts_changed(self.job.roster)
            changed = asyncio.create_task(self._changed.wait())
            await asyncio.wait({work, changed}, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            await self._reopen_places()
        return work.result() if work.done() else None

    async def _reopen_places(self) -> None:
        """On plain hosts, let new agents join a running elastic job in the place of lost ones."""
        lost, self._to_reopen = self._to_reopen, []
        if lost and self._next_roster is not None and not self._stop_reason:
            roster = self._next_roster(self.job, lost)
            if roster is not None:
                await self.set_roster(roster)

    def _must_end(self, ranks: RankGroup) -> bool:
        lost = bool(self._lost_now) and not ranks.survives_lost_hosts
        return lost or bool(self._stop_reason) or self.job.must_restart

    async def _end_on_hosts(self, roster: Roster) -> list[str]:
        """End whatever runs on the roster's hosts; returns those that are not there any more."""
        everybody = {place.host: self.job.registry.admitted(place.host) for place in roster.hosts}
        silent = await self._agents.end([who for who in everybody.values() if who is not None], END_SECONDS)
        for who in silent:
            _log.error("host %s does not answer", who.host)
            self.job.disconnect(who)
            connection = self._agents.forget(who)
            self._fencing.silent(who, time.monotonic() if connection is None else connection.heard)
            if connection is not None:
                await connection.close(CLOSE_REPLACED, "no answer")
        return [
            host for host, who in everybody.items() if who is None or self._agents.connection(who) is None
        ]

    async def _conclude(self, end: End | None, gone: list[str]) -> None:
        lost = sorted({*gone, *self._lost_now})
        if self._stop_reason:
            self.job.stop(self._stop_reason)
        elif end is not None and end.status == 0:
            self.job.finish(end)
        elif self.job.must_restart:
            self.job.restart()
        elif lost:
            await self._lose(lost, f"lost {', '.join(lost[:10])}: the ranks were ended on all hosts")
        elif end is not None and not end.by_program:
            await self._lose([], end.message)
        else:
            assert end is not None
            self.job.finish(end)

    async def _lose(self, hosts: list[str], message: str) -> None:
        self.job.lose(tuple(hosts), message)
        _log.error("%s: %s", self.job.state, self.job.message)
        await self._go_on_without_operator()

    async def _go_on_without_operator(self) -> None:
        if self._next_roster is None or self.job.state != LOST:
            return
        if (roster := self._next_roster(self.job, self.job.lost_hosts)) is None:
            self.job.finish(End(1, f"{self.job.message}; no restart is left"))
        else:
            await self.set_roster(roster)

    def _lost(self, incarnation: Incarnation) -> None:
        admitted = self.job.registry.is_admitted(incarnation)
        self.job.disconnect(incarnation)
        level = logging.WARNING if admitted and self.job.active else logging.INFO
        _log.log(level, "host %s has gone (%s)", incarnation.host, incarnation.uid)
        if admitted and self.job.active:
            self._lost_now.append(incarnation.host)
            if self._ranks is not None and self._ranks.survives_lost_hosts:
                self._ranks.host_lost()
                self._to_reopen.append(incarnation.host)
                self.job.lost_hosts = tuple(self._lost_now)
        self._changed.set()

    def _all_run(self) -> None:
        self.job.running()
        _log.info("generation %d: all ranks run", self.job.generation)

    def _assigned(self, hosts: Sequence[str]) -> None:
        self.job.measured.number(hosts)
        self.job.lost_hosts = ()
        self._lost_now.clear()

    async def _may_go_on(self, seconds: float | None) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while self.job.end is None and not self.job.may_start:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True
