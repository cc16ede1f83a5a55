"""Signs of life on a WebSocket: asked for so often that either side may stand still for a while."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from aiohttp import ClientError, ClientWebSocketResponse, WSMessage, WSMsgType

from gradsieve_hvd.control.contract import PING_SECONDS, PINGS

if TYPE_CHECKING:
    from aiohttp import web  # what every agent starts without

_TIME = struct.Struct("!d")
_ENDS = frozenset({WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR})


class Heartbeat:
    """One side's view of the other; the socket must have been made with ``autoping=False``.

    Both ping, whatever else they say, and `PINGS` times `PING_SECONDS` without a word end the patience. That
    time is counted in periods in which this process ran: after it stood still, what has come meanwhile is
    read before anybody is given up. A side that stands still for less than ``PINGS - 1`` periods is not.

    Args:
        socket: open.
        answered: called with the time at which a ping was *sent* that has been answered now: the other side
            heard of this one at that time or later. Of the monotonic clock.

    Attributes:
        heard: when the last word came, of the monotonic clock.
        silent: whether the other side was given up.
    """

    def __init__(
        self,
        socket: web.WebSocketResponse | ClientWebSocketResponse,
        answered: Callable[[float], None] = lambda _sent: None,
    ) -> None:
        self._socket = socket
        self._answered = answered
        self._sending: set[asyncio.Task[None]] = set()
        self.heard = time.monotonic()
        self.silent = False

    async def messages(self) -> AsyncGenerator[WSMessage]:
        """Yield what is said until the connection ends; `silent` tells whether that is why."""
        unheard, asked = 0, time.monotonic() - PING_SECONDS
        receiving: asyncio.Task[WSMessage] | None = None
        try:
            while True:
                if unheard or time.monotonic() - asked >= PING_SECONDS:
                    asked = time.monotonic()
                    self._send(self._socket.ping(_TIME.pack(asked)))
                receiving = receiving or asyncio.create_task(self._socket.receive())
                await asyncio.wait({receiving}, timeout=PING_SECONDS)
                if not receiving.done():
                    unheard += 1
                    self.silent = unheard == PINGS
                    if self.silent:
                        return
                    continue
                message, receiving = receiving.result(), None
                if message.type in _ENDS:
                    return
                unheard, self.heard = 0, time.monotonic()
                if message.type is WSMsgType.PING:
                    self._send(self._socket.pong(message.data))
                elif message.type is not WSMsgType.PONG:
                    yield message
                elif len(message.data) == _TIME.size:
                    self._answered(*_TIME.unpack(message.data))
        finally:
            for task in (*self._sending, *([receiving] if receiving is not None else ())):
                task.cancel()

    def _send(self, frame: Awaitable[None]) -> None:
        """Send a frame; one that is not taken, because the other side does not read, is waited for aside."""

        async def sent() -> None:
            with suppress(ConnectionError, ClientError, RuntimeError):
                await frame

        task = asyncio.create_task(sent())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
