"""Ranks under Horovod's elastic driver: agents start them, survivors go on in place if a host is lost."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.elastic.discovery import FixedHosts

from gradsieve_hvd.control.agents import LOST_STATUS, RECONNECT_SECONDS, RemoteRun
from gradsieve_hvd.control.elastic_driver import Driver, Rendezvous, rendezvous_handler
from gradsieve_hvd.control.job_state_machine import End
from gradsieve_hvd.control.messages import Incarnation, Roster
from gradsieve_hvd.control.rank_group import START_SECONDS, Setting
from gradsieve_hvd.launcher.output import OutputFilter
from gradsieve_hvd.launcher.python_command import rank_command

_END_SECONDS = 15.0
_LOOK_SECONDS = 0.5
_DISCOVERY_SECONDS = 1.5
"""Within this time Horovod's driver has seen which hosts there are: it looks once per second."""
_ELASTIC_SECONDS = 600
"""How long survivors wait for hosts to take the place of lost ones; Horovod's own default."""


def horovod_host(incarnation: Incarnation, start: int = 0) -> str:
    """Name of an incarnation among Horovod's hosts: it never uses a host again that it has lost.

    start: how many times ranks were started on it before this one.
    """
    name = f"{incarnation.host}.{incarnation.uid}"
    return f"{name}.{start}" if start else name


def slot_environment(slot: SlotInfo, address: str, port: int) -> dict[str, str]:
    """What Horovod wants to know in the rank on ``slot``, whose rendezvous is at ``address``."""
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_ELASTIC": "1",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_HOSTNAME": slot.hostname,
        "HOROVOD_RANK": str(slot.rank),
        "HOROVOD_SIZE": str(slot.size),
        "HOROVOD_LOCAL_RANK": str(slot.local_rank),
        "HOROVOD_LOCAL_SIZE": str(slot.local_size),
        "HOROVOD_CROSS_RANK": str(slot.cross_rank),
        "HOROVOD_CROSS_SIZE": str(slot.cross_size),
    }


class GlooRanks:
    """Ranks of one generation; each has a rendezvous of its own, since Horovod's keeps stale keys.

    Args:
        setting: what to start.
    """

    survives_lost_hosts = True

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._loop = asyncio.get_running_loop()
        self._hosts: dict[str, Incarnation] = {}
        self._discovery = FixedHosts({})
        self._command = rank_command(setting.roster.command)
        self._port = 0
        self._driver: Driver | None = None
        self._failed: asyncio.Future[End] = self._loop.create_future()
        self._statuses: dict[tuple[str, int], int] = {}
        self._current: list[tuple[str, int]] = []
        self._runs: dict[tuple[str, int], RemoteRun] = {}
        self._host_was_lost = asyncio.Event()  # since the ranks were numbered
        self._roster: Roster = setting.roster
        self._starts: Counter[Incarnation] = Counter()

    async def run(self) -> End:
        """Start all ranks, and wait until Horovod's driver says that they have ended, or one has failed.

        1. Ranks end with status 0: the job has succeeded.
        2. A rank fails on a host that is still there, and no host is lost either: the job has failed.
        3. A host is lost: the others meet again without it, or with its successor; if they cannot, the ranks
           have failed because of the loss.
        4. A rank fails because another host is lost (Horovod as PyPI has it may abort then): it is started
           anew, and the others take it in.
        """
        rendezvous = Rendezvous(lambda plan: self._soon(self._assigned, list(plan)))
        fewest = self._setting.roster.fewest_ranks
        timeout = int(os.environ.get("HOROVOD_ELASTIC_TIMEOUT", _ELASTIC_SECONDS))
        driver = Driver(rendezvous, self._discovery, fewest, None, timeout=timeout)
        self._driver = driver
        self._port = rendezvous.start(rendezvous_handler(driver, self._address_of, self._peers))
        done = self._in_thread(lambda: self._drive(driver))
        seen = asyncio.create_task(self._see_ranks())
        waiting: set[asyncio.Future[Any]] = {done, self._failed}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return self._failed.result() if self._failed.done() else self._outcome(done.result())
        finally:
            seen.cancel()
            await self.end()

    async def end(self) -> None:
        """Stop driver and rendezvous; the ranks themselves are ended by their agents."""
        driver, self._driver = self._driver, None
        if driver is not None and not driver.finished():
            await asyncio.wait({self._in_thread(driver.stop)}, timeout=_END_SECONDS)

    def hosts_changed(self, roster: Roster) -> None:
        """Tell Horovod which hosts there are."""
        self._roster = roster
        found = {place.host: self._setting.registry.admitted(place.host) for place in roster.hosts}
        slots = {}
        for place in roster.hosts:
            incarnation = found[place.host]
            if incarnation is not None:
                name = horovod_host(incarnation, self._starts[incarnation])
                self._hosts[name] = incarnation
                slots[name] = place.slots
        self._discovery.set(slots)

    def host_lost(self) -> None:
        """Remember that what fails now may fail because of this."""
        self._host_was_lost.set()

    def _drive(self, driver: Driver) -> str | None:
        # On all hosts that are here: one may have been lost since the roster was complete.
        driver.start(self._setting.roster.fewest_ranks, self._create_worker)
        message: str | None = driver.get_results().error_message
        return message

    def _create_worker(self, slot: SlotInfo, events: list[threading.Event]) -> tuple[int, float]:
        """Horovod's driver calls it in a thread per rank, and takes its return for the rank's end."""
        future = asyncio.run_coroutine_threadsafe(self._run_rank(slot, events), self._loop)
        return future.result(), time.time()

    async def _run_rank(self, slot: SlotInfo, events: list[threading.Event]) -> int:
        incarnation = self._hosts[slot.hostname]
        connection = self._setting.agents.connection(incarnation)
        address = "" if connection is None else connection.local_address
        prefixes = {name: OutputFilter(prefix=f"[{slot.rank}] ".encode()) for name in ("stdout", "stderr")}

        def output(stream: str, data: bytes) -> None:
            if stream in prefixes:
                self._setting.output(stream, prefixes[stream].feed(data))

        variables = {**self._setting.variables(), **slot_environment(slot, address, self._port)}
        run_id, run = await self._setting.agents.run(
            incarnation, self._command, variables, output, ranks=1, keep=True
        )
        self._runs[slot.hostname, slot.local_rank] = run
        while not run.ended.done():
            await asyncio.wait({run.ended}, timeout=_LOOK_SECONDS)
            if any(event.is_set() for event in events) and not run.ended.done():
                await self._setting.agents.end([incarnation], _END_SECONDS, run_id)
                await asyncio.wait({run.ended}, timeout=_END_SECONDS)
                run.finish(LOST_STATUS)
        for stream, prefix in prefixes.items():
            self._setting.output(stream, prefix.close())
        return await self._ended(slot, run)

    async def _ended(self, slot: SlotInfo, run: RemoteRun) -> int:
        status = run.ended.result()
        self._statuses[slot.hostname, slot.local_rank] = status
        if status and self._is_current(slot.hostname, run.incarnation):
            if await self._was_host_lost():
                await self._start_again(slot.hostname, run.incarnation)
            elif not self._failed.done():
                why = run.error or f"rank {slot.rank} on {run.incarnation.host} exited with status {status}"
                self._failed.set_result(End(status, why))
        return status

    def _is_current(self, name: str, incarnation: Incarnation) -> bool:
        """Whether Horovod may use the host by this name: it is there, and was not given another one."""
        there = self._setting.registry.admitted(incarnation.host) == incarnation
        return there and name == horovod_host(incarnation, self._starts[incarnation])

    async def _was_host_lost(self) -> bool:
        """A rank that loses its peers may fail before the loss of their host is known."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._host_was_lost.wait(), RECONNECT_SECONDS + 1.0)
        return self._host_was_lost.is_set()

    async def _start_again(self, name: str, incarnation: Incarnation) -> None:
        """Give a host whose ranks have failed another name, before Horovod hears of the failure and numbers
        the ranks: it would do without the host for ever.
        """
        if self._driver is not None and self._is_current(name, incarnation):
            self._starts[incarnation] += 1
            self.hosts_changed(self._roster)
            await asyncio.sleep(_DISCOVERY_SECONDS)

    def _assigned(self, plan: list[SlotInfo]) -> None:
        """Ranks were numbered: at the start, or because hosts came or went."""
        self._current = [(slot.hostname, slot.local_rank) for slot in plan]
        self._host_was_lost.clear()
        numbered = sorted(plan, key=lambda slot: slot.rank)
        self._setting.assigned([self._hosts[slot.hostname].host for slot in numbered])

    def _outcome(self, error: str | None) -> End:
        statuses = [self._statuses.get(place, LOST_STATUS) for place in self._current]
        status = max(statuses, default=1)
        if error is None and status == 0:
            return End(0, "all ranks succeeded")
        return End(status or 1, error or "the ranks could not go on without the lost hosts")

    async def _see_ranks(self) -> None:
        """Wait until all ranks run that are numbered now: a host may be lost, or come, before that."""
        until = self._loop.time() + START_SECONDS
        while self._loop.time() < until:
            if self._current and all(self._is_seen(place) for place in self._current):
                self._setting.running()
                return
            await asyncio.sleep(_LOOK_SECONDS)
        if not self._failed.done():
            self._failed.set_result(End(1, f"not all ranks were started within {START_SECONDS:.0f} s"))

    def _is_seen(self, place: tuple[str, int]) -> bool:
        run = self._runs.get(place)
        return run is not None and run.ranks.done() and not run.ranks.cancelled()

    def _address_of(self, host: str) -> str:
        incarnation = self._hosts.get(host)
        connection = None if incarnation is None else self._setting.agents.connection(incarnation)
        return "" if connection is None else connection.peer_address

    def _peers(self) -> set[str]:
        return {self._address_of(host) for host in list(self._hosts)} - {""}

    def _soon(self, call: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(call, *arguments)

    def _in_thread(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Horovod's calls can block for ever after a loss: in a thread that does not keep the process."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def run() -> None:
            try:
                result, error = work(), None
            except Exception as raised:  # noqa: BLE001 - whatever Horovod raises is the waiting task's
                result, error = None, raised
            self._soon(_settle, future, result, error)

        threading.Thread(target=run, daemon=True, name="horovod-driver").start()
        return future


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
