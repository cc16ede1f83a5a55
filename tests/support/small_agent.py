"""The part of an agent that ranks talk to: it keeps what they tell of themselves."""

from __future__ import annotations

import json
import socket
import tempfile
import threading
from typing import Any, Self


class AgentSocket:
    """A context manager. path: of the socket, short enough for one. told: what ranks have told so far."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gs-")
        self.path = f"{self._folder.name}/samples"
        self.told: list[dict[str, Any]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._thread = threading.Thread(target=self._receive, daemon=True)

    def __enter__(self) -> Self:
        self._socket.bind(self.path)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
            own.sendto(b"", self.path)
        self._thread.join()
        self._socket.close()
        self._folder.cleanup()

    def _receive(self) -> None:
        while datagram := self._socket.recv(65536):
            self.told.append(json.loads(datagram))
