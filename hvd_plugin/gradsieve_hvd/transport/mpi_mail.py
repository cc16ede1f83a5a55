"""Letters over MPI: who waits for them looks, and sleeps between looks."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from mpi4py import MPI
from torch import Tensor

from gradsieve.errors import ConfigurationError, ExchangeError

_FIRST_TAG, _TAGS = 20_000, 4_096  # above the channels of allgathers; one for each time mail is opened
_SHORTEST_NAP, _MOVING_NAP, _USUAL_NAP, _LONGEST_NAP = 50e-6, 100e-6, 2e-3, 20e-3  # seconds
_LATER = 0.01
"""Of the time since the last letter: who has been idle for long looks seldom, and a letter waits for at most
so much longer.
"""
_LONGEST_LETTER = 2**31 - 1
Result = TypeVar("Result")


class Ask(Protocol):
    """Calls MPI as its transport allows: one thread at a time, and none after its end."""

    def __call__(self, call: Callable[[], Result], what: str) -> Result:
        """Return what the call does.

        Raises:
            ExchangeError: MPI has failed, or the transport was closed.
        """
        ...


class _Leaving(NamedTuple):
    """letter: kept until it has left."""

    request: MPI.Request
    letter: Tensor


class MpiMail:
    """Letters in a communicator.

    Args:
        comm: of a transport. ask: see `Ask`. timeout: seconds that one letter may be on its way. number: how
            often mail was opened before.

    rank, size: see `Mail`.
    """

    def __init__(self, comm: MPI.Intracomm, ask: Ask, timeout: float, number: int) -> None:
        self._comm, self._ask, self._timeout = comm, ask, timeout
        self._tag = _FIRST_TAG + number % _TAGS
        self.rank, self.size = comm.rank, comm.size
        self._own: queue.Queue[Tensor] = queue.Queue()  # see thread_mail.Box: no SimpleQueue
        self._leaving: list[_Leaving] = []
        self._lock = threading.Lock()
        self._last = time.monotonic()  # when a letter came or left
        self._nap = _SHORTEST_NAP

    def post(self, letter: Tensor, to: int) -> None:
        """See `Mail`.

        Raises:
            ConfigurationError: the letter is longer than 2 GiB.
        """
        if to == self.rank:
            self._own.put(letter)
            return
        if letter.numel() > _LONGEST_LETTER:
            raise ConfigurationError(
                f"rank {self.rank}: a letter of {letter.numel()} bytes; MPI takes {_LONGEST_LETTER}: spread "
                "the model over more ranks"
            )
        self._last = time.monotonic()
        letter = letter.contiguous()
        buffer: list[Any] = [letter.numpy(), MPI.BYTE]
        with self._lock:
            request = self._ask(lambda: self._comm.Isend(buffer, to, self._tag), f"posting to rank {to}")
            self._leaving.append(_Leaving(request, letter))

    def collect(self, seconds: float) -> tuple[int, Tensor] | None:
        """See `Mail`."""
        ends = time.monotonic() + seconds
        while True:
            status = MPI.Status()
            arriving = self._ask(lambda: self._comm.Improbe(MPI.ANY_SOURCE, self._tag, status), "collecting")  # noqa: B023 - called at once
            now = time.monotonic()
            if arriving is not None:
                self._last, self._nap = now, _SHORTEST_NAP
                return status.Get_source(), self._received(arriving, status)
            left = ends - now
            idle = min(max(_USUAL_NAP, _LATER * (now - self._last)), _LONGEST_NAP)
            self._nap = min(2 * self._nap, _MOVING_NAP if self._still_leaving() else idle)
            try:
                own = self._own.get(timeout=max(min(self._nap, left), 0.0))
            except queue.Empty:
                if left <= 0:
                    return None
            else:
                self._last, self._nap = time.monotonic(), _SHORTEST_NAP
                return self.rank, own

    def close(self, seconds: float) -> None:
        """See `Mail`."""
        ends = time.monotonic() + seconds
        while self._still_leaving() and time.monotonic() < ends:
            time.sleep(_MOVING_NAP)

    def _received(self, arriving: MPI.Message, status: MPI.Status) -> Tensor:
        letter = torch.empty(status.Get_count(MPI.BYTE), dtype=torch.uint8, device="cpu")
        buffer: list[Any] = [letter.numpy(), MPI.BYTE]
        source, began = status.Get_source(), time.monotonic()
        receiving = self._ask(lambda: arriving.Irecv(buffer), f"collecting from rank {source}")
        while not self._ask(receiving.Test, f"collecting from rank {source}"):
            if time.monotonic() - began > self._timeout:
                raise ExchangeError(
                    f"rank {self.rank}: not all of a letter from rank {source} within {self._timeout:g} s"
                )
            time.sleep(_MOVING_NAP)
        return letter

    def _still_leaving(self) -> bool:
        with self._lock:
            self._leaving = [
                each for each in self._leaving if not self._ask(each.request.Test, "posting a letter")
            ]
            return bool(self._leaving)
