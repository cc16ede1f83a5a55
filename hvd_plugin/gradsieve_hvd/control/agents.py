"""The coordinator's view of its agents: who is connected, what they run, and when one counts as lost."""

from __future__ import annotations

import asyncio
import base64
import itertools
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gradsieve_hvd.control.children import Output
from gradsieve_hvd.control.fields import Fields
from gradsieve_hvd.control.messages import Incarnation, Registration

LOST_STATUS = 255
"""Exit status of a run whose host was lost."""

RECONNECT_SECONDS = 3.0
"""How long a host whose connection broke may take to dial again before it counts as lost."""

_log = logging.getLogger("gradsieve.coordinator")


class Connection(Protocol):
    """An agent's connection, as far as it matters here."""

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one message; nothing happens if the connection has gone."""

    async def close(self, code: int, reason: str) -> None:
        """Close the connection."""

    @property
    def heard(self) -> float:
        """When the agent's last word came, of the monotonic clock."""

    @property
    def local_address(self) -> str:
        """The coordinator's own IP address as this agent sees it."""

    @property
    def peer_address(self) -> str:
        """The agent's IP address."""


@dataclass
class RemoteRun:
    """A program on another host.

    Attributes:
        incarnation: where it runs.
        output: takes what it writes.
        ended: its exit status; ``LOST_STATUS`` if the host was lost.
        ranks: the ranks that were seen to run there.
        error: why it could not be started; empty if it was.
    """

    incarnation: Incarnation
    output: Output
    ended: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    ranks: asyncio.Future[tuple[int, ...]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    error: str = ""

    def finish(self, status: int) -> None:
        """Note its end, once."""
        if not self.ended.done():
            self.ended.set_result(status)
        if not self.ranks.done():
            self.ranks.cancel()


class Agents:
    """Connections and runs of all agents.

    Args:
        on_lost: called with an incarnation that did not come back in time, or has left.
    """

    def __init__(self, on_lost: Callable[[Incarnation], None]) -> None:
        self._on_lost = on_lost
        self._connections: dict[Incarnation, Connection] = {}
        self._timers: dict[Incarnation, asyncio.TimerHandle] = {}
        self._runs: dict[str, RemoteRun] = {}
        self._answers: dict[str, tuple[Incarnation, asyncio.Future[None]]] = {}
        # Agents outlive coordinators: an id must not come twice in an agent's life.
        self._prefix = secrets.token_hex(4)
        self._count = itertools.count()

    def connection(self, incarnation: Incarnation) -> Connection | None:
        """Its connection, if it has one at this moment."""
        return self._connections.get(incarnation)

    def connected(self, registration: Registration, connection: Connection) -> Connection | None:
        """Take over a registered agent's connection; returns the one that it replaces.

        Runs that ended while there was no connection end now, and those that the agent does not know (it
        never got the message) are lost.
        """
        incarnation = registration.incarnation
        if timer := self._timers.pop(incarnation, None):
            timer.cancel()
        old = self._connections.get(incarnation)
        self._connections[incarnation] = connection
        for run_id, run in self._runs.items():
            if run.incarnation == incarnation:
                status = registration.runs.get(run_id, LOST_STATUS)
                if status is not None:
                    run.finish(status)
        return old

    async def end_unknown(self, registration: Registration) -> None:
        """Have an agent end what it runs for a generation that is over, or for another coordinator."""
        connection = self._connections.get(registration.incarnation)
        for run_id, status in registration.runs.items():
            if connection is not None and status is None and run_id not in self._runs:
                _log.warning(
                    "host %s: ending run %s, which is not of now", registration.incarnation.host, run_id
                )
                await connection.send({"type": "end", "id": run_id, "ask": "unknown"})

    def disconnected(self, incarnation: Incarnation, connection: Connection, *, left: bool) -> None:
        """A connection has gone; unless the agent ``left`` on purpose, it has some seconds to dial again."""
        if self._connections.get(incarnation) is not connection:
            return
        del self._connections[incarnation]
        if left:
            self._lose(incarnation)
        else:
            _log.warning("host %s: connection lost", incarnation.host)
            self._timers[incarnation] = asyncio.get_running_loop().call_later(
                RECONNECT_SECONDS, self._lose, incarnation
            )

    def forget(self, incarnation: Incarnation) -> Connection | None:
        """An incarnation was fenced: its runs count as lost; returns its connection."""
        connection = self._connections.pop(incarnation, None)
        self._finish_runs(incarnation)
        return connection

    async def run(
        self,
        incarnation: Incarnation,
        argv: Sequence[str],
        variables: Mapping[str, str],
        output: Output,
        *,
        ranks: int,
        keep: bool,
    ) -> tuple[str, RemoteRun]:
        """Start a program on a host.

        Args:
            incarnation: where.
            argv: program and arguments.
            variables: environment on top of the agent's.
            output: takes what it writes.
            ranks: how many ranks are expected to run below it.
            keep: whether it goes on if the agent loses its coordinator.
        """
        run_id = f"{self._prefix}-{next(self._count)}"
        run = self._runs[run_id] = RemoteRun(incarnation, output)
        message = {"type": "run", "id": run_id, "argv": list(argv), "env": dict(variables), "ranks": ranks}
        connection = self._connections.get(incarnation)
        if connection is None and incarnation not in self._timers:
            run.finish(LOST_STATUS)
        elif connection is not None:
            await connection.send({**message, "keep": int(keep)})
        return run_id, run

    async def end(
        self, incarnations: Iterable[Incarnation], seconds: float, run: str = ""
    ) -> list[Incarnation]:
        """Have agents end one run, or all; returns those that have not said so within ``seconds``."""
        answers: dict[asyncio.Future[None], Incarnation] = {}
        for incarnation in incarnations:
            connection = self._connections.get(incarnation)
            if connection is not None:
                ask = f"{self._prefix}-{next(self._count)}"
                future = asyncio.get_running_loop().create_future()
                self._answers[ask] = incarnation, future
                answers[future] = incarnation
                await connection.send({"type": "end", "id": run, "ask": ask})
        try:
            late = (await asyncio.wait(answers, timeout=seconds))[1] if answers else set()
        finally:
            for ask in [ask for ask, (_, future) in self._answers.items() if future in answers]:
                del self._answers[ask]
        return [answers[future] for future in late]

    def message(self, incarnation: Incarnation, fields: Fields) -> None:
        """Take a message of a registered agent; only its own runs are touched.

        Raises:
            Refused: it does not fit.
        """
        kind = fields.text("type", most=32)
        if kind == "ended":
            who, future = self._answers.get(fields.text("ask", most=64), (None, None))
            if who == incarnation and future is not None and not future.done():
                future.set_result(None)
            return
        run = self._runs.get(fields.text("id", most=64))
        if run is None or run.incarnation != incarnation:
            return
        if kind == "output":
            stream = fields.text("stream", most=16)
            try:
                data = base64.b64decode(fields.text("data", most=1 << 20, empty=True), validate=True)
            except ValueError:
                fields.refuse("data", "base64")
            run.output(stream, data)
        elif kind == "exit":
            run.finish(fields.integer("status", 0, 255))
        elif kind == "ranks" and not run.ranks.done():
            run.ranks.set_result(fields.integers("ranks", 1 << 14, 1 << 20))
        elif kind == "error":
            run.error = fields.text("message")

    def forget_runs(self) -> None:
        """The runs of this generation are over, whatever their agents still say."""
        for run in self._runs.values():
            run.finish(LOST_STATUS)
        self._runs.clear()

    def _lose(self, incarnation: Incarnation) -> None:
        self._timers.pop(incarnation, None)
        self._finish_runs(incarnation)
        self._on_lost(incarnation)

    def _finish_runs(self, incarnation: Incarnation) -> None:
        for run in list(self._runs.values()):
            if run.incarnation == incarnation:
                run.finish(LOST_STATUS)
        for who, future in self._answers.values():
            if who == incarnation and not future.done():
                future.set_result(None)
