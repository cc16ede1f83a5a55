"""What an agent has to tell, kept while there is nobody to tell it to."""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from typing import Any

Message = dict[str, Any]

_MOST_OUTPUT_BYTES = 4 << 20


class Outbox:
    """Messages in order; output beyond 4 MiB is dropped, oldest first, and counted: ranks never wait."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._output_bytes = 0
        self._dropped = 0
        self._filled = asyncio.Event()

    def put(self, message: Message) -> None:
        """Add a message."""
        self._messages.append(message)
        self._filled.set()

    def put_output(self, run: str, stream: str, data: bytes) -> None:
        """Add what a run has written."""
        self.put({"type": "output", "id": run, "stream": stream, "data": base64.b64encode(data).decode()})
        self._output_bytes += len(data)
        while self._output_bytes > _MOST_OUTPUT_BYTES:
            self._drop_oldest_output()

    async def first(self) -> Message:
        """Wait for the oldest message; it stays until :meth:`remove_first`: none is lost on the way."""
        while not self._messages:
            self._filled.clear()
            await self._filled.wait()
        message = self._messages[0]
        if message["type"] == "output" and self._dropped:
            note = f"\n[gradsieve: {self._dropped} bytes of output were dropped here]\n".encode()
            self._dropped = 0
            self._messages.appendleft({**message, "data": base64.b64encode(note).decode()})
            self._output_bytes += len(note)
        return self._messages[0]

    def remove_first(self, message: Message) -> None:
        """Forget ``message``, which :meth:`first` returned and which has been sent."""
        if self._messages and self._messages[0] is message:
            self._messages.popleft()
            if message["type"] == "output":
                self._output_bytes -= _size(message)

    def forget(self, kind: str) -> None:
        """Drop the messages of a type whose time is over; not output's, which is counted."""
        self._messages = deque(message for message in self._messages if message["type"] != kind)

    def _drop_oldest_output(self) -> None:
        for place, message in enumerate(self._messages):
            if message["type"] == "output":
                del self._messages[place]
                self._output_bytes -= _size(message)
                self._dropped += _size(message)
                return


def _size(message: Message) -> int:
    return len(base64.b64decode(message["data"]))
