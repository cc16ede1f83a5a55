"""Takes connections in for an application of aiohttp, before TLS or aiohttp spend anything on them."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from gradsieve.errors import LaunchError
from gradsieve_hvd.control.address import Address
from gradsieve_hvd.control.connection_limits import Owners, Strangers, Waits
from gradsieve_hvd.control.fields import Refused
from gradsieve_hvd.control.identity import Identity

_BACKLOG = 1024
_SWEEP_SECONDS = 1.0
_OUT_OF_FILES_SECONDS = 0.2
_REMIND_SECONDS = 60.0
_MOST_HEADERS = 32
_UNCOLLECTED = 32
"""Ended connections whose memory may wait for Python's garbage collector: asyncio's TLS is a cycle of objects
with a buffer of 256 KiB, and the collector, which counts objects, not bytes, lets hundreds pile up."""

_log = logging.getLogger("gradsieve.coordinator")


@dataclass(frozen=True)
class Limits:
    """What a port lets in.

    Attributes:
        strangers: connections without a certificate; each costs 0.3 MiB, nearly all of it asyncio's for TLS.
        strangers_per_address: of these, from one address.
        handshake_seconds: how long TLS may take.
        per_owner: connections by one certificate.
        first_seconds: how long a connection may take to bring its first request.
        idle_seconds: how long it may be without a request later.
    """

    strangers: int = 96
    strangers_per_address: int = 32
    handshake_seconds: float = 10.0
    per_owner: int = 16
    first_seconds: float = 10.0
    idle_seconds: float = 75.0


class _Connection:
    """One connection, from the moment that it is accepted."""

    def __init__(self, accepted: socket.socket, address: str) -> None:
        self.accepted, self.address, self.owner = accepted, address, ""
        self.transport: asyncio.Transport | None = None
        self.handshake: asyncio.Task[None] | None = None

    @property
    def closed(self) -> bool:
        """Whether nothing of it is left; a transport that is closing may still wait for the other side."""
        return self.accepted.fileno() < 0

    def drop(self) -> None:
        """End it at once."""
        if self.transport is not None:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()
        else:
            self.accepted.close()


class Listener:
    """One port of an application.

    1. Every connection is accepted at once: the kernel's queue must not keep agents waiting.
    2. Until TLS has shown a certificate it is a stranger's, without TLS for good: see `Strangers`.
    3. Then its owner may have a few: see `Owners`. Each must bring requests: see `Waits`.

    Args:
        application: not set up yet; gets a middleware.
        address: where to listen.
        context: of TLS; None for a port without it.
        limits: what is let in.
    """

    def __init__(
        self, application: web.Application, address: Address, context: ssl.SSLContext | None, limits: Limits
    ) -> None:
        self._address, self._limits = address, limits
        self._tls: dict[str, Any] = {}
        if context is not None:
            seconds = limits.handshake_seconds
            self._tls = {"ssl": context, "ssl_handshake_timeout": seconds, "ssl_shutdown_timeout": seconds}
        self._strangers: Strangers[_Connection] = Strangers(limits.strangers, limits.strangers_per_address)
        self._owners: Owners[_Connection] = Owners(limits.per_owner)
        self._waits: Waits[_Connection] = Waits(limits.first_seconds, limits.idle_seconds)
        self._open: dict[asyncio.BaseTransport | None, _Connection] = {}
        application.middlewares.insert(0, self._noting_requests())
        self._runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=1.0,
            keepalive_timeout=limits.idle_seconds,
            max_headers=_MOST_HEADERS,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._sockets: list[socket.socket] = []
        self._dropped, self._ended, self._reminded = 0, 0, -_REMIND_SECONDS

    async def start(self) -> None:
        """Listen.

        Raises:
            LaunchError: the port cannot be had.
        """
        await self._runner.setup()
        host, port = self._address.host, self._address.port
        try:
            self._sockets = await _bound(host, port)
        except OSError as error:
            raise LaunchError(f"cannot listen on {host}:{port}: {error.strerror}") from error
        for each in self._sockets:
            self._spawn(self._accept(each))
        self._spawn(self._sweep())
        _log.info("listening on %s:%d", host or "*", port)

    async def close(self) -> None:
        """Listen no longer, and end what is open."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for each in self._sockets:
            each.close()
        await self._runner.cleanup()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
            except ConnectionError:
                continue
            except OSError as error:
                # There may be no file descriptor left; what is open must go on.
                self._remind(f"cannot accept connections: {error.strerror}")
                await asyncio.sleep(_OUT_OF_FILES_SECONDS)
                continue
            connection = _Connection(accepted, str(peer[0]))
            oldest = self._strangers.enter(connection, connection.address)
            if oldest is not None:
                oldest.drop()
                self._dropped += 1
                self._remind(f"{self._dropped} connections without a certificate had to make room so far")
            self._spawn(self._take_in(connection))
            # What waits for being accepted comes without a pause; others have their turn in between.
            await asyncio.sleep(0)

    async def _take_in(self, connection: _Connection) -> None:
        """See a connection through to its owner."""
        if connection.closed:
            return
        connection.handshake = asyncio.current_task()
        assert self._runner.server is not None
        try:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                self._runner.server, connection.accepted, **self._tls
            )
        except BaseException as error:
            self._forget(connection)
            if isinstance(error, OSError):
                return
            raise
        connection.transport = transport
        if self._tls:
            self._strangers.leave(connection, connection.address)
            connection.owner = _owner(transport)
            if not self._may_have(connection):
                self._remind(f"{connection.owner} has {self._limits.per_owner} connections already")
                transport.abort()
                return
        self._open[transport] = connection
        self._waits.opened(connection, time.monotonic())

    def _may_have(self, connection: _Connection) -> bool:
        if self._owners.enter(connection, connection.owner):
            return True
        self._forget_closed()
        return self._owners.enter(connection, connection.owner)

    def _noting_requests(self) -> Any:
        @web.middleware
        async def note(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            connection = self._open.get(request.transport)
            if connection is None:
                return await handler(request)
            self._waits.asked(connection)
            try:
                return await handler(request)
            finally:
                self._waits.answered(connection, time.monotonic())

        return note

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            for connection in self._waits.overdue(time.monotonic()):
                connection.drop()
            self._forget_closed()

    def _forget_closed(self) -> None:
        for transport, connection in list(self._open.items()):
            if connection.closed:
                del self._open[transport]
                self._forget(connection)

    def _forget(self, connection: _Connection) -> None:
        self._strangers.leave(connection, connection.address)
        self._owners.leave(connection, connection.owner)
        self._waits.closed(connection)
        self._ended += 1
        if self._ended % _UNCOLLECTED == 0:
            gc.collect()

    def _remind(self, message: str) -> None:
        """Warn, but not as often as somebody else pleases."""
        if time.monotonic() - self._reminded >= _REMIND_SECONDS:
            self._reminded = time.monotonic()
            _log.warning("port %d: %s", self._address.port, message)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _bound(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on all addresses of ``host``; an empty one stands for this machine's."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    made: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            made.append(_listening(family, address))
    except OSError:
        for each in made:
            each.close()
        raise
    return made


def _listening(family: int, address: Any) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def _owner(transport: asyncio.BaseTransport) -> str:
    """Return whose certificate was shown; all that name no role of ours count as one."""
    try:
        identity = Identity.of(transport.get_extra_info("peercert"))
    except Refused:
        return "a certificate without a role"
    return f"{identity.role} {identity.name}"
