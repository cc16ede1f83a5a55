"""A proxy between the operator and the API server that kills the operator at writes of the test's choice."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from forwarding_proxy import ForwardingProxy, Handler
from operator_process import OperatorProcess

WRITES = frozenset({"POST", "PATCH", "PUT", "DELETE"})


class Cut(Enum):
    """When the operator dies."""

    BEFORE = "the request never arrives"
    AFTER = "the answer never arrives"


@dataclass(frozen=True)
class Write:
    """One write of the operator.

    Attributes:
        method: of the request.
        path: of the request, without its query.
        body: what was sent; empty if nothing.
        at: when it came, of the monotonic clock.
    """

    method: str
    path: str
    body: dict[str, Any]
    at: float

    @property
    def name(self) -> str:
        """Name of the object that is written; of an event, the one that it is about."""
        if self.path.endswith("/events"):
            return str(self.body["involvedObject"]["name"])
        if self.method == "POST":
            return str(self.body["metadata"]["name"])
        return self.path.removesuffix("/status").rpartition("/")[2]


class CuttingProxy(ForwardingProxy):
    """Forwards everything, and asks at each write whether the operator is to die there.

    Args:
        cluster: whose API server it is for.
        operator: the process; started through here, and again after each death.
        folder: takes its kubeconfig.

    Attributes:
        writes: everything that the API server was given, in order.
        deaths: the writes at which the operator was killed, and how.
        choose: says whether to kill; settable at any time.
        life: counts the operators.
    """

    def __init__(self, cluster: Any, operator: OperatorProcess, folder: Path) -> None:
        super().__init__(cluster, folder)
        self._operator = operator
        self._lock = threading.Lock()
        self.life = 0
        self.writes: list[Write] = []
        self.deaths: list[tuple[Write, Cut]] = []
        self.choose: Callable[[Write], Cut | None] = lambda _: None

    @contextmanager
    def running(self) -> Iterator[CuttingProxy]:
        """Serve, with the operator behind it; afterwards the operator runs without it."""
        try:
            with self.serving():
                self._operator.kill()
                self._operator.start(self.kubeconfig)
                try:
                    yield self
                finally:
                    with self._lock:
                        self.choose = lambda _: None
                        self._operator.kill()
        finally:
            self._operator.start()  # also for the tests after one that fails

    def quiet(self, seconds: float) -> bool:
        """Whether nothing was written for so long."""
        return bool(self.writes) and time.monotonic() - self.writes[-1].at > seconds

    def connected(self) -> int:
        """Return which operator has just connected."""
        return self.life

    def forward(self, request: Handler) -> None:
        """Carry one request of an operator to the API server, or let it die of it."""
        if request.command not in WRITES:
            super().forward(request)
            return
        body = request.body()
        write = Write(
            request.command, urlsplit(request.path).path, json.loads(body) if body else {}, time.monotonic()
        )
        with self._lock:
            if request.client != self.life:
                raise ConnectionAbortedError("sent by an operator that is dead by now")
            cut = self.choose(write)
            if cut is Cut.BEFORE:
                self._kill(write, cut)
            # With the lock: what is in flight when the operator dies has either arrived or not.
            self.writes.append(write)
            with closing(self._connect()) as connection:
                answer = self._call(connection, request, body)
            if cut is Cut.AFTER:
                self._kill(write, cut)
        request.answer(*answer)

    def _kill(self, write: Write, cut: Cut) -> NoReturn:
        self._operator.kill()
        self.life += 1
        self.deaths.append((write, cut))
        self._operator.start(self.kubeconfig)
        raise ConnectionAbortedError(f"the operator was killed: {cut.value}")
