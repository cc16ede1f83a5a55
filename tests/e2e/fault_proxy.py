"""A proxy in front of the API server that is slow, refuses, or breaks off, for the operator alone."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

from forwarding_proxy import ForwardingProxy, Handler

_REASONS = {
    HTTPStatus.TOO_MANY_REQUESTS: "TooManyRequests",
    HTTPStatus.INTERNAL_SERVER_ERROR: "InternalError",
}


class FaultProxy(ForwardingProxy):
    """Forwards everything while no fault is asked for.

    Args:
        cluster: whose API server it is for.
        folder: takes its kubeconfig.

    Attributes:
        troubled: how many requests were delayed, refused or broken off.
    """

    def __init__(self, cluster: Any, folder: Path) -> None:
        super().__init__(cluster, folder)
        self._delay = self._share = 0.0
        self._status = HTTPStatus.OK
        self._chance = random.Random(0)
        self._watches: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.troubled = 0

    @contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Let each request wait for so long before it goes on."""
        self._delay = seconds
        try:
            yield
        finally:
            self._delay = 0.0

    @contextmanager
    def refusing(self, status: HTTPStatus, share: float) -> Iterator[None]:
        """Answer this share of the requests with an error, without the API server."""
        self._status, self._share = status, share
        try:
            yield
        finally:
            self._share = 0.0

    def cut_watches(self) -> None:
        """Break all open watches off, in the middle of whatever they tell."""
        with self._lock:
            for watch in self._watches:
                with suppress(OSError):
                    watch.shutdown(socket.SHUT_RDWR)
            self.troubled += len(self._watches)

    def forward(self, request: Handler) -> None:
        """Carry one request to the API server, unless it is to meet with a fault."""
        if self._delay:
            self.troubled += 1
            time.sleep(self._delay)
        if self._share and self._chance.random() < self._share:
            self.troubled += 1
            self._refuse(request, self._status)
        elif request.watches():
            with self._lock:
                self._watches.add(request.connection)
            try:
                super().forward(request)
            finally:
                with self._lock:
                    self._watches.discard(request.connection)
        else:
            super().forward(request)

    def _refuse(self, request: Handler, status: HTTPStatus) -> None:
        request.body()
        said = {
            "apiVersion": "v1",
            "kind": "Status",
            "status": "Failure",
            "code": int(status),
            "reason": _REASONS[status],
            "message": "a fault that a test asked for",
        }
        headers = [("Content-Type", "application/json")]
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            headers.append(("Retry-After", "1"))
        request.answer(status, headers, json.dumps(said).encode())
