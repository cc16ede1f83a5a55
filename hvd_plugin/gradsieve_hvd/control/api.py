"""The coordinator's calls over mutual TLS; each asks the caller's certificate first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Protocol

from aiohttp import WSMsgType, web

from gradsieve_hvd.control.agent_connection import AgentConnection
from gradsieve_hvd.control.contract import (
    AGENT_PATH,
    CLOSE_FENCED,
    CLOSE_FORBIDDEN,
    CLOSE_MALFORMED,
    PLAN_PATH,
    ROSTER_PATH,
    STATUS_PATH,
    STOP_PATH,
    TELEMETRY_PATH,
)
from gradsieve_hvd.control.fields import MOST_BYTES, Fields, Refused
from gradsieve_hvd.control.identity import Identity
from gradsieve_hvd.control.job_state_machine import JobStateMachine
from gradsieve_hvd.control.messages import Incarnation, Plan, Registration, Roster
from gradsieve_hvd.control.registry import Fenced
from gradsieve_hvd.control.telemetry import Telemetry

REQUEST_SECONDS = 10.0
"""How long a caller may take to send a request, or an agent to register."""

_FORBIDDEN = 403
_LEFT = 1001
_log = logging.getLogger("gradsieve.coordinator")


class Decisions(Protocol):
    """What the calls ask of the coordinator.

    Attributes:
        job: the job's state.
    """

    job: JobStateMachine

    async def set_roster(self, roster: Roster) -> None:
        """As :meth:`JobStateMachine.set_roster`, and fence whom it fences."""

    async def agent_registered(self, registration: Registration, connection: AgentConnection) -> None:
        """Take an agent in, or raise :class:`Refused`."""

    def agent_message(self, incarnation: Incarnation, fields: Fields) -> Mapping[str, Any] | None:
        """Take a message of a registered agent, or raise :class:`Refused`; returns what to answer."""

    def agent_gone(self, incarnation: Incarnation, connection: AgentConnection, *, left: bool) -> None:
        """A registered agent's connection has ended; it ``left`` if it said so."""

    async def stop(self, reason: str) -> None:
        """End the ranks of the current generation; returns when they have ended."""

    def status(self) -> dict[str, Any]:
        """The job's state, which the operator now gets to know."""


class Api:
    """Handlers of the calls that :data:`PERMISSIONS` lists.

    Args:
        decisions: what they are for.
    """

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    def application(self) -> web.Application:
        """The calls as an application of aiohttp."""
        application = web.Application(middlewares=[_guard], client_max_size=MOST_BYTES)
        application.add_routes(
            [
                web.get(AGENT_PATH, self._agent, allow_head=False),
                web.put(ROSTER_PATH, self._put_roster),
                web.put(PLAN_PATH, self._put_plan),
                web.get(PLAN_PATH, self._get_plan, allow_head=False),
                web.post(TELEMETRY_PATH, self._telemetry),
                web.get(STATUS_PATH, self._status, allow_head=False),
                web.post(STOP_PATH, self._stop),
            ]
        )
        return application

    async def _put_roster(self, request: web.Request) -> web.Response:
        await self._decisions.set_roster(Roster.read(await _body(request, "roster")))
        return web.json_response({"generation": self._decisions.job.generation})

    async def _put_plan(self, request: web.Request) -> web.Response:
        plan = Plan.read(await _body(request, "plan"))
        self._decisions.job.set_plan(plan)
        return web.json_response({"generation": plan.generation})

    async def _get_plan(self, request: web.Request) -> web.Response:
        plan = self._decisions.job.plan_for(_identity(request).name)
        return web.json_response({"generation": 0} if plan is None else plan.fields)

    async def _telemetry(self, request: web.Request) -> web.Response:
        telemetry = Telemetry.read(await _body(request, "telemetry"))
        self._decisions.job.take(_identity(request).name, telemetry)
        return web.json_response({})

    async def _status(self, _request: web.Request) -> web.Response:
        return web.json_response(self._decisions.status())

    async def _stop(self, request: web.Request) -> web.Response:
        reason = (await _body(request, "stop")).text("reason", most=1024)
        try:
            await self._decisions.stop(reason)
        except TimeoutError as error:
            raise Refused("some ranks have not ended yet: ask for the status, or stop again", 504) from error
        return web.json_response({"state": self._decisions.job.state})

    async def _agent(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoping=False, max_msg_size=2 * MOST_BYTES)
        await socket.prepare(request)
        connection = AgentConnection(socket, request)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                registration = Registration.read(Fields.parse(await socket.receive_str(), "registration"))
            _check_host(_identity(request), registration.incarnation.host)
            await self._decisions.agent_registered(registration, connection)
        except (Refused, TimeoutError, TypeError) as error:
            await _refuse(connection, error)
            return socket
        left = True
        try:
            await self._listen(connection, registration.incarnation)
            left = socket.close_code == _LEFT and not connection.silent
        except Refused as error:
            await _refuse(connection, error)
        finally:
            self._decisions.agent_gone(registration.incarnation, connection, left=left)
        return socket

    async def _listen(self, connection: AgentConnection, incarnation: Incarnation) -> None:
        async with aclosing(connection.messages()) as messages:
            async for message in messages:
                if message.type is not WSMsgType.TEXT:
                    raise Refused("an agent's message must be text")
                fields = Fields.parse(message.data, f"message of {incarnation.host}")
                answer = self._decisions.agent_message(incarnation, fields)
                if answer is not None:
                    await connection.send(answer)


@web.middleware
async def _guard(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Ask the certificate whether the call is allowed, and answer refusals as JSON."""
    try:
        _identity(request).demand(request.method, request.path)
        return await handler(request)
    except Refused as error:
        _log.warning("refused: %s", error)
        return web.json_response({"error": str(error)}, status=error.status)


def _identity(request: web.Request) -> Identity:
    return Identity.of(request.get_extra_info("peercert"))


def _check_host(identity: Identity, host: str) -> None:
    if identity.name != host:
        raise Refused(f"the certificate of host {identity.name!r} cannot register host {host!r}", _FORBIDDEN)


async def _body(request: web.Request, what: str) -> Fields:
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            return Fields.parse(await request.read(), what)
    except TimeoutError as error:
        raise Refused(f"{what}: not received within {REQUEST_SECONDS:.0f} s", 408) from error


async def _refuse(connection: AgentConnection, error: Exception) -> None:
    reason = str(error) or f"no registration within {REQUEST_SECONDS:.0f} s"
    _log.warning("agent at %s refused: %s", connection.peer_address, reason)
    if isinstance(error, Fenced):
        await connection.send({"type": "fence", "reason": reason})
        await connection.close(CLOSE_FENCED, "fenced")
        return
    await connection.send({"type": "refused", "reason": reason})
    forbidden = isinstance(error, Refused) and error.status == _FORBIDDEN
    await connection.close(CLOSE_FORBIDDEN if forbidden else CLOSE_MALFORMED, "refused")
