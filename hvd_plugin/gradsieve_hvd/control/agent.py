"""The agent of a host: dials the coordinator, registers, and runs what it is handed. It listens nowhere."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import ssl
import tempfile
import time
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from gradsieve.errors import GradsieveError, LaunchError
from gradsieve_hvd.control.agent_lease import AgentLease
from gradsieve_hvd.control.agent_runs import AgentRuns
from gradsieve_hvd.control.agent_samples import AgentSamples
from gradsieve_hvd.control.children import ENDING
from gradsieve_hvd.control.contract import (
    AGENT_PATH,
    CLOSE_FENCED,
    COORDINATOR,
    FENCED_STATUS,
    HOST,
    PROTOCOL,
    RANK_SAMPLES,
    ROLE_COORDINATOR,
    SAMPLES,
    SAMPLES_REFUSED,
    SERVER_NAME,
    SILENCE_SECONDS,
    SLOTS,
    TAKES_SAMPLES,
    TLS_DIRECTORY,
    WORKER_GROUP,
)
from gradsieve_hvd.control.dialling import insistent_connector
from gradsieve_hvd.control.fields import MOST_BYTES, Fields, Refused
from gradsieve_hvd.control.heartbeat import Heartbeat
from gradsieve_hvd.control.identity import Identity
from gradsieve_hvd.control.messages import Incarnation
from gradsieve_hvd.control.outbox import Outbox
from gradsieve_hvd.control.tls import Authorities, client_context
from gradsieve_hvd.launcher.linux import interface_of

_CONNECT_SECONDS = 10.0
_SHORTEST_BACK_OFF, _LONGEST_BACK_OFF = 0.2, 5.0
_EAGER_SECONDS, _EAGER_BACK_OFF = 30.0, 1.0
"""A coordinator that starts, or is replaced, is there within seconds: every job waits for the last agent."""

_FAREWELL_SECONDS = 2.0
_REMIND_SECONDS = 30.0
_TERMINATED = 143
_log = logging.getLogger("gradsieve.agent")


@dataclass(frozen=True)
class AgentSettings:
    """How an agent is started.

    Attributes:
        coordinator: ``https://HOST:PORT`` to dial.
        incarnation: the host's name, as in the certificate, and what tells this life of it from others.
        slots: how many ranks it takes.
        tls: folder with ``ca.crt``, ``tls.crt`` and ``tls.key``.
        generation: generation of the job for which the pod was made; 0 outside Kubernetes.
        group: worker group; empty outside Kubernetes.
        gpus: names of the GPUs.
        once: end with the job, with its exit status, instead of waiting for the next one.
    """

    coordinator: str
    incarnation: Incarnation
    slots: int
    tls: Path
    generation: int = 0
    group: str = ""
    gpus: tuple[str, ...] = ()
    once: bool = False

    def variables(self) -> dict[str, str]:
        """Environment variables by which ranks find their way to the coordinator."""
        return {
            COORDINATOR: self.coordinator,
            HOST: self.incarnation.host,
            SLOTS: str(self.slots),
            TLS_DIRECTORY: str(self.tls.absolute()),
            WORKER_GROUP: self.group,
        }


class _Over(GradsieveError):
    """The agent's work is done.

    Attributes:
        status: exit status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Agent:
    """One agent, from start to end.

    Attributes:
        runs: what it runs.
    """

    def __init__(self, settings: AgentSettings, folder: Path) -> None:
        self._settings = settings
        self._authorities = Authorities(client_context(settings.tls), settings.tls)
        self._outbox = Outbox()
        self._samples, self._samples_at = AgentSamples(settings.slots), folder / "samples"
        variables = {**settings.variables(), SAMPLES: str(self._samples_at)}
        self.runs = AgentRuns(settings.slots, folder, variables, self._outbox)
        self._lease = AgentLease(lambda: self._do(self.runs.end_forsaken()))
        self._work: set[asyncio.Task[None]] = set()
        self._complained = ("", 0.0)
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def serve(self) -> int:
        """Dial the coordinator again and again until told to end; returns the exit status."""
        back_off, alone_since = _SHORTEST_BACK_OFF, time.monotonic()
        await self._samples.open(self._samples_at)
        async with aiohttp.ClientSession(connector=insistent_connector()) as session:
            while True:
                began = time.monotonic()
                try:
                    await self._connect(session)
                except _Over as over:
                    _log.info("%s", over)
                    return over.status
                except (aiohttp.ClientError, OSError, TimeoutError, GradsieveError) as error:
                    self._complain(f"no connection to {self._settings.coordinator}: {_reason(error)}")
                if time.monotonic() - began > _LONGEST_BACK_OFF:
                    back_off, alone_since = _SHORTEST_BACK_OFF, time.monotonic()
                # All agents of a coordinator that restarts would come at the same moment.
                await asyncio.sleep(back_off * random.uniform(0.75, 1.25))
                eager = time.monotonic() - alone_since < _EAGER_SECONDS
                back_off = min(_EAGER_BACK_OFF if eager else _LONGEST_BACK_OFF, 2 * back_off)

    async def leave(self) -> None:
        """Tell the coordinator that this host goes; a connection that is only dropped counts for a while."""
        if self._socket is not None:
            with suppress(TimeoutError, aiohttp.ClientError, OSError):
                async with asyncio.timeout(_FAREWELL_SECONDS):
                    await self._socket.close(code=aiohttp.WSCloseCode.GOING_AWAY)

    async def end(self) -> None:
        """End all runs."""
        for task in self._work:
            task.cancel()
        await self.runs.end()
        self.runs.close()
        self._samples.close()

    def _complain(self, message: str) -> None:
        said, when = self._complained
        if message != said or time.monotonic() - when > _REMIND_SECONDS:
            _log.warning("%s; dialling again until it answers", message)
            self._complained = message, time.monotonic()

    async def _connect(self, session: aiohttp.ClientSession) -> None:
        async with asyncio.timeout(_CONNECT_SECONDS):
            socket = await session.ws_connect(
                self._settings.coordinator + AGENT_PATH,
                ssl=self._authorities.current(),
                server_hostname=SERVER_NAME,
                autoping=False,
                max_msg_size=2 * MOST_BYTES,
            )
        sender, self._socket = None, socket
        heartbeat = Heartbeat(socket, self._lease.heard_at)
        dialled = heartbeat.heard
        try:
            identity = Identity.of(socket.get_extra_info("peercert"))
            if identity.role != ROLE_COORDINATOR:
                raise LaunchError(f"a {identity.role} answers there, not a coordinator")
            address = socket.get_extra_info("sockname")
            self.runs.interface = interface_of(address[0]) if address else ""
            await socket.send_json(self._registration())
            async with aclosing(heartbeat.messages()) as messages:
                async for message in messages:
                    if message.type is not aiohttp.WSMsgType.TEXT:
                        raise Refused("the coordinator sent something else than text")
                    fields = Fields.parse(message.data, "message from the coordinator")
                    if fields.text("type") == "registered":
                        self._on_registered(dialled, fields)
                        sender = asyncio.create_task(self._send(socket))
                    else:
                        self._on_message(fields)
            if heartbeat.silent:
                raise LaunchError(f"no word from the coordinator for {SILENCE_SECONDS:.0f} s")
            self._on_closed(socket)
        finally:
            if sender is not None:
                sender.cancel()
                self._lease.disconnected()
            self._samples.hold()
            self._outbox.forget(RANK_SAMPLES)
            self._socket = None
            # Only who leaves is "going away"; this agent is about to dial again.
            code = aiohttp.WSCloseCode
            await socket.close(code=code.TRY_AGAIN_LATER if heartbeat.silent else code.GOING_AWAY)

    def _registration(self) -> dict[str, object]:
        settings = self._settings
        return {
            "type": "register",
            "protocol": PROTOCOL,
            "host": settings.incarnation.host,
            "podUID": settings.incarnation.uid,
            "generation": settings.generation,
            "slots": settings.slots,
            "gpus": list(settings.gpus),
            "group": settings.group,
            "runs": self.runs.known(),
            "machine": os.uname().nodename,
        }

    def _on_registered(self, dialled: float, fields: Fields) -> None:
        _log.info("registered with %s as %s", self._settings.coordinator, self._settings.incarnation.host)
        self._complained = ("", 0.0)
        self._lease.heard_at(dialled)
        if TAKES_SAMPLES in fields:
            self._samples.hand_to(self._outbox.put)

    def _on_message(self, fields: Fields) -> None:
        kind = fields.text("type", most=32)
        if kind == "run":
            self.runs.start(fields)
        elif kind == "signal":
            self.runs.signal(fields)
        elif kind == "end":
            self._do(self._end_runs(fields.text("id", most=64, empty=True), fields.text("ask", most=64)))
        elif kind == SAMPLES_REFUSED:
            self._samples.refused(fields.text("reason"))
        elif kind == "fence":
            raise _Over(FENCED_STATUS, f"fenced: {fields.text('reason')}")
        elif kind == "refused":
            raise LaunchError(f"refused: {fields.text('reason')}")
        elif kind == "over" and self._settings.once:
            raise _Over(fields.integer("status", 0, 255), "the job is over")

    async def _end_runs(self, run: str, ask: str) -> None:
        await self.runs.end(run)
        self._outbox.put({"type": "ended", "ask": ask})

    async def _send(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        with suppress(ConnectionError, aiohttp.ClientError):
            while True:
                message = await self._outbox.first()
                await socket.send_json(message)
                self._outbox.remove_first(message)

    def _on_closed(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        if socket.close_code == CLOSE_FENCED:
            raise _Over(FENCED_STATUS, "fenced: another incarnation of this host has taken its place")
        if (error := socket.exception()) is not None:
            raise LaunchError(f"connection lost ({error})")
        raise LaunchError(f"closed by the coordinator with code {socket.close_code}")

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)


async def run_agent(settings: AgentSettings) -> int:
    """Run an agent until it is told to end, fenced, or its only job is over; returns the exit status.

    Whatever it has started is ended first. SIGUSR1 shows the Python stacks of the host's ranks.
    """
    loop = asyncio.get_running_loop()
    told_to_end = asyncio.Event()
    for number in ENDING:
        loop.add_signal_handler(number, told_to_end.set)
    with tempfile.TemporaryDirectory(prefix="gradsieve-agent-", ignore_cleanup_errors=True) as folder:
        agent = Agent(settings, Path(folder))
        loop.add_signal_handler(signal.SIGUSR1, loop.run_in_executor, None, agent.runs.show_stacks)
        serving = asyncio.create_task(agent.serve())
        ending = asyncio.create_task(told_to_end.wait())
        try:
            await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                return serving.result()
            _log.info("told to end")
            # Leaving first: the coordinator should hear of a lost host before it hears of dying ranks.
            await agent.leave()
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving
            return _TERMINATED
        finally:
            ending.cancel()
            await agent.end()


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError | aiohttp.ClientSSLError | aiohttp.ClientConnectorCertificateError):
        hint = "are both sides' certificates of one `gradsieve certificates` call, and still valid?"
        return f"TLS failed ({error}): {hint}"
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.strerror:
        return error.os_error.strerror
    return str(error) or repr(error)
