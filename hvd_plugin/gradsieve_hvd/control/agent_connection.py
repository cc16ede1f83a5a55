"""One agent's WebSocket at the coordinator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

from aiohttp import ClientError, WSMessage, web

from gradsieve_hvd.control.heartbeat import Heartbeat

_SEND_SECONDS = 10.0


class AgentConnection:
    """Sends to one agent, and knows the addresses of both ends.

    Args:
        socket: open.
        request: from which it was made.
    """

    def __init__(self, socket: web.WebSocketResponse, request: web.Request) -> None:
        self._socket = socket
        self._local = _address(request, "sockname")
        self._peer = _address(request, "peername")
        self._heartbeat: Heartbeat | None = None
        self._since = time.monotonic()
        self._took_nothing = False

    @property
    def local_address(self) -> str:
        """The coordinator's own IP address as this agent sees it."""
        return self._local

    @property
    def peer_address(self) -> str:
        """The agent's IP address."""
        return self._peer

    @property
    def silent(self) -> bool:
        """Whether the agent did not answer, rather than closing the connection."""
        return self._took_nothing or (self._heartbeat is not None and self._heartbeat.silent)

    @property
    def heard(self) -> float:
        """When the agent's last word came, of the monotonic clock."""
        return self._since if self._heartbeat is None else self._heartbeat.heard

    def messages(self) -> AsyncGenerator[WSMessage]:
        """Yield what a registered agent says, until the connection has ended or it is silent."""
        self._heartbeat = Heartbeat(self._socket)
        return self._heartbeat.messages()

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one message; a connection that takes none within ten seconds is closed."""
        with suppress(ConnectionError, ClientError, RuntimeError):
            try:
                async with asyncio.timeout(_SEND_SECONDS):
                    await self._socket.send_json(message)
            except TimeoutError:
                self._took_nothing = True
                await self.close(1011, "no message was taken")

    async def close(self, code: int, reason: str) -> None:
        """Close the connection; a reason has at most 123 bytes."""
        with suppress(ConnectionError, ClientError, RuntimeError):
            await self._socket.close(code=code, message=reason.encode()[:123])


def _address(request: web.Request, end: str) -> str:
    address = request.get_extra_info(end)
    return str(address[0]) if address else ""
