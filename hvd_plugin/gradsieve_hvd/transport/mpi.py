"""Messages over MPI, by a communicator of our own and from any one thread.

MPI's blocking calls spin: a rank that waits takes a whole core from those that still compute. Here a rank
that waits looks, and sleeps between looks.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

import torch
from mpi4py import MPI
from torch import Tensor

from gradsieve.errors import ConfigurationError, ExchangeError

from .running_clock import RUNNING

_TAG = 1
_SHORTEST_NAP, _LONGEST_NAP = 50e-6, 1e-3  # seconds
_MOVING_NAP = 100e-6  # while a message is on its way: MPI moves some 100 kB of it whenever it is asked
_FAREWELL_SECONDS = 3.0
_LONGEST_MESSAGE = 2**31 - 1  # MPI 3 counts bytes in an int
Result = TypeVar("Result")


class MpiTransport:
    """Ranks of ``MPI.COMM_WORLD``, in a communicator that nobody else uses.

    Made by all of these ranks in the same order, before a thread uses another transport. It is closed when
    the interpreter ends, before Horovod, if that was initialised first, ends MPI: the first rank at which it
    does ends it for all of them, and another may not have read yet what it was sent. So ranks that end wait
    for each other, for some seconds.

    Args:
        ranks: numbers in ``COMM_WORLD``, this process's among them; None for all.
        timeout: how long a message may take, in seconds.

    Raises:
        ConfigurationError: MPI does not allow calls from several threads at once.

    rank, size: see `Transport`.
    """

    def __init__(self, ranks: Sequence[int] | None = None, timeout: float = 300.0) -> None:
        if why := why_unusable():
            raise ConfigurationError(why)
        world = MPI.COMM_WORLD
        members = range(world.size) if ranks is None else ranks
        self._comm = world.Create_group(world.group.Incl(list(members)), _TAG)
        self._timeout = timeout
        self.rank, self.size = self._comm.rank, self._comm.size
        self._calls, self._over = threading.Lock(), ""
        self._unfinished: list[object] = []  # MPI still writes to, or reads from, their memory
        # Horovod registers its shutdown when it is initialised, and what was registered last comes first.
        atexit.register(self._end)

    def send_receive(self, message: Tensor, to: int, source: int) -> Tensor:
        """Send to one rank and return what another one has sent at the same time.

        Raises:
            ExchangeError: a rank did not take part in time, MPI has failed, or the transport was closed. From
                then on messages no longer match, so that each call raises.
            ConfigurationError: the message is longer than 2 GiB.
        """
        if to == self.rank == source:
            return message
        if message.numel() > _LONGEST_MESSAGE:
            raise ConfigurationError(
                f"rank {self.rank}: a message of {message.numel()} bytes; MPI takes {_LONGEST_MESSAGE}: "
                "exchange smaller buckets"
            )
        with self._within_mpi(f"between ranks {self.rank}, {to} and {source}"):
            return self._swapped(message.contiguous(), to, source)

    def allreduce(self, values: Tensor) -> Tensor:
        """Return the sum over ranks (fp32 [N], CPU, a new tensor). MPI adds up one part while others travel.

        Raises:
            ExchangeError: see `send_receive`.
        """
        values = values.contiguous()
        total = torch.empty_like(values)
        with self._within_mpi("in a sum over ranks"):
            sent, received = [values.numpy(), MPI.FLOAT], [total.numpy(), MPI.FLOAT]
            summing = self._comm.Iallreduce(sent, received, MPI.SUM)
            self._unfinished = [values, total, summing]
            self._wait(summing.Test, "no sum with the other ranks", _MOVING_NAP)
            self._unfinished = []
        return total

    def close(self) -> None:
        """Make a call that waits, and all later ones, raise; return when none is within MPI any more."""
        self._over = self._over or f"rank {self.rank}: the transport was closed, the program ends"
        with self._calls:
            atexit.unregister(self._end)

    def _end(self) -> None:
        """Wait until all ranks end, unless this one is within an exchange; then close."""
        if self._calls.acquire(blocking=False):
            try:
                # Ranks of which one has failed, or still trains, do not meet.
                with suppress(MPI.Exception, ExchangeError):
                    self._require_open()
                    together, began = self._comm.Ibarrier(), time.monotonic()
                    while not together.Test() and time.monotonic() - began < _FAREWELL_SECONDS:
                        time.sleep(_LONGEST_NAP)
                        self._require_open()
            finally:
                self._calls.release()
        self.close()

    @contextmanager
    def _within_mpi(self, where: str) -> Iterator[None]:
        with self._calls:
            self._require_open()
            try:
                yield
            except MPI.Exception as error:
                self._over = f"rank {self.rank}: MPI failed {where}"
                raise ExchangeError(f"{self._over}: {error}") from error

    def _swapped(self, message: Tensor, to: int, source: int) -> Tensor:
        status = MPI.Status()
        sending = self._comm.Isend([message.numpy(), MPI.BYTE], to, _TAG)
        self._unfinished = [message, sending]
        # A matched probe tells the length, and takes the message out of reach of others.
        arriving = self._wait(lambda: self._comm.Improbe(source, _TAG, status), f"nothing from rank {source}")
        received = torch.empty(status.Get_count(MPI.BYTE), dtype=torch.uint8, device="cpu")
        receiving = arriving.Irecv([received.numpy(), MPI.BYTE])
        self._unfinished += [received, receiving]
        self._wait(receiving.Test, f"not all of a message from rank {source}", _MOVING_NAP)
        self._wait(sending.Test, f"rank {to} has not taken what it was sent", _MOVING_NAP)
        self._unfinished = []
        return received

    def _wait(
        self, look: Callable[[], Result | None], missing: str, longest_nap: float = _LONGEST_NAP
    ) -> Result:
        """Return what ``look`` finds, once it does."""
        nap, began = _SHORTEST_NAP, RUNNING.seconds()
        while not (found := look()):
            if RUNNING.seconds() - began > self._timeout:
                self._over = (
                    f"rank {self.rank}: {missing} within {self._timeout:g} s; all ranks must make the same "
                    "exchanges in the same order"
                )
            time.sleep(nap)
            nap = min(2 * nap, longest_nap)
            self._require_open()
        return found

    def _require_open(self) -> None:
        if not self._over and MPI.Is_finalized():
            self._over = f"rank {self.rank}: MPI has ended; exchange before hvd.shutdown()"
        if self._over:
            raise ExchangeError(self._over)


def world() -> tuple[int, int]:
    """Return this process's rank in ``MPI.COMM_WORLD``, and how many there are."""
    return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size


def why_unusable() -> str:
    """Return why no transport can be made over this process's MPI; nothing if one can."""
    if not MPI.Is_initialized() or MPI.Is_finalized():
        return "mpi4py's MPI does not run: Horovod uses another MPI library, or has ended it"
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return "MPI was started without support for calls from several threads (MPI_THREAD_MULTIPLE)"
    return ""
