"""The unix socket by which ``mpirun``'s launch agents hand their commands to the coordinator."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from gradsieve.errors import LaunchError
from gradsieve_hvd.control.agents import RemoteRun
from gradsieve_hvd.control.children import Output
from gradsieve_hvd.control.fields import MOST_BYTES, Fields, Refused

_REQUEST_SECONDS = 10.0
_log = logging.getLogger("gradsieve.coordinator")

StartDaemon = Callable[[str, str, Output], Awaitable[RemoteRun]]
"""Starts a shell command on a host."""


class LaunchSocket:
    """Listens on a unix socket that only this user can open, below a folder that only this user can enter.

    Args:
        path: of the socket; at most 107 bytes long.
        start: starts the command.
    """

    def __init__(self, path: Path, start: StartDaemon) -> None:
        self._path = path
        self._start = start
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Begin to listen.

        Raises:
            LaunchError: the path is too long for a socket.
        """
        try:
            self._server = await asyncio.start_unix_server(self._serve, self._path, limit=MOST_BYTES)
        except OSError as error:
            raise LaunchError(
                f"cannot listen at {self._path} ({error}): set TMPDIR to a short path"
            ) from error
        self._path.chmod(0o600)

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def say(message: dict[str, object]) -> None:
            if not writer.is_closing():
                writer.write(json.dumps(message).encode() + b"\n")

        def output(stream: str, data: bytes) -> None:
            say({"stream": stream, "data": base64.b64encode(data).decode()})

        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                request = Fields.parse(await reader.readline(), "request of a launch agent")
            run = await self._start(request.text("host"), request.text("command", most=MOST_BYTES), output)
            status = await run.ended
            if run.error:
                output("stderr", f"{run.error}\n".encode())
            say({"status": status})
        except (Refused, ValueError, TimeoutError) as error:
            _log.error("a launch agent's request was refused: %s", error)
            say({"status": 2})
        finally:
            with suppress(ConnectionError):
                await writer.drain()
            writer.close()
