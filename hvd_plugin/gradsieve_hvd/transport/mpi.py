"""Messages over MPI, by a communicator of our own.

MPI's blocking calls spin: a rank that waits takes a whole core from those that still compute. Here a rank
that waits looks, and sleeps between looks. One thread may wait for messages, and those of `SideBySide` for
sums, while others begin exchanges.
"""

from __future__ import annotations

import atexit
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

import torch
from mpi4py import MPI
from torch import Tensor

from gradsieve.errors import ConfigurationError, ExchangeError

from .base import Arriving, DeviceSums
from .mpi_mail import MpiMail
from .peers import Wait
from .running_clock import RUNNING
from .side_by_side import SideBySide
from .sums import RINGS_AT_ONCE, begin_sum

_TAG = 1
_FIRST_CHANNEL, _CHANNELS = 2, 1 << 14  # tags of allgathers; MPI has 2^15 at least
_SHORTEST_NAP, _LONGEST_NAP = 50e-6, 1e-3  # seconds
_MOVING_NAP = 100e-6  # while a message is on its way: MPI moves some 100 kB of it whenever it is asked
_FAREWELL_SECONDS = 3.0
_LONGEST_MESSAGE = 2**31 - 1  # MPI 3 counts bytes in an int
Result = TypeVar("Result")


class _Sending(NamedTuple):
    """number: of its memory among what is unfinished."""

    number: int
    request: MPI.Request


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
        ExchangeError: another rank did not make it in time, or has ended MPI meanwhile.

    rank, size: see `Transport`. device_sums: see `SummingOnDevices`.
    """

    device_sums: DeviceSums | None = None

    def __init__(self, ranks: Sequence[int] | None = None, timeout: float = 300.0) -> None:
        if why := why_unusable():
            raise ConfigurationError(why)
        world = MPI.COMM_WORLD
        members = range(world.size) if ranks is None else ranks
        self._comm = world.Create_group(world.group.Incl(list(members)), _TAG)
        self._timeout = timeout
        self.rank, self.size = self._comm.rank, self._comm.size
        self._calls, self._over = threading.Lock(), ""
        self._numbers, self._mails = itertools.count(), itertools.count()
        self._rings = SideBySide(RINGS_AT_ONCE)
        self._unfinished: dict[int, object] = {}  # MPI still writes to, or reads from, their memory
        self._blocks: dict[int, list[tuple[int, _Sending]]] = {}  # under way, with who gets them, by tag
        # Horovod registers its shutdown when it is initialised, and what was registered last comes first.
        atexit.register(self._end)
        # Its shutdown on another rank ends MPI here at any moment, which deletes this first.
        MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=_mpi_ends), weakref.ref(self))
        # A rank that went on to that shutdown at once would leave others in `Create_group` forever.
        together = self._ask(self._comm.Ibarrier, "making the transport")
        self._wait(together.Test, "not all ranks have made the transport")

    def send_receive(self, message: Tensor, to: int, source: int) -> Tensor:
        """Send to one rank and return what another one has sent at the same time.

        Raises:
            ExchangeError: a rank did not take part in time, MPI has failed, or the transport was closed. From
                then on messages no longer match, so that each call raises.
            ConfigurationError: the message is longer than 2 GiB.
        """
        if to == self.rank == source:
            return message
        sending = self.begin_send(message, to, _TAG)
        received = self._received(source, _TAG)
        self.finish_send(sending, to)
        return received

    def begin_allgather(self, message: Tensor, channel: int = 0) -> Arriving:
        """Send a message to all ranks, and return without waiting; see `Posting`.

        Raises:
            ExchangeError, ConfigurationError: see `send_receive`.
        """
        tag = _FIRST_CHANNEL + channel % _CHANNELS
        messages = [message] * self.size
        sending = self._begin_sends(messages, tag)

        def arriving() -> Iterator[Tensor]:
            yield from self._arriving(messages, tag)
            for to, each in [*self._blocks.pop(tag, ()), *sending]:
                self.finish_send(each, to)

        return arriving

    def begin_alltoall(self, messages: Sequence[Tensor], channel: int = 0) -> Arriving:
        """Send each rank its own message, and return without waiting; see `PostingBlocks`.

        The next allgather of the channel sees them off. Who waited for that here, before an exchange that was
        begun earlier is finished, would wait for a rank that takes nothing more until this one takes what
        belongs to the earlier one.

        Raises:
            ExchangeError, ConfigurationError: see `send_receive`.
        """
        tag = _FIRST_CHANNEL + channel % _CHANNELS
        self._blocks.setdefault(tag, []).extend(self._begin_sends(messages, tag))
        return lambda: self._arriving(messages, tag)

    def _begin_sends(self, messages: Sequence[Tensor], tag: int) -> list[tuple[int, _Sending]]:
        others = [(self.rank + away) % self.size for away in range(1, self.size)]
        return [(to, self.begin_send(messages[to], to, tag)) for to in others]

    def _arriving(self, messages: Sequence[Tensor], tag: int) -> Iterator[Tensor]:
        for source in range(self.size):
            yield messages[source] if source == self.rank else self._received(source, tag)

    def begin_allreduce(self, values: Tensor, channel: int = 0) -> Callable[[], Tensor]:
        """Begin a sum over ranks without waiting; see `BeginningSums`.

        MPI's own sums would have to begin in one order on all ranks, whichever thread begins them, and meet
        with a pause of the link after each round.

        Raises:
            ExchangeError: see `send_receive`.
        """
        if self.size == 1:
            return values.clone
        peers = _Peers(self, _FIRST_CHANNEL + channel % _CHANNELS)
        return begin_sum(values, self.rank, self.size, peers, self._rings)

    def open_mail(self) -> MpiMail:
        """See `gradsieve_hvd.transport.mail.Mailing`."""
        return MpiMail(self._comm, self._ask, self._timeout, next(self._mails))

    def close(self) -> None:
        """Make a call that waits, and all later ones, raise; return when none is within MPI any more."""
        self._over = self._over or f"rank {self.rank}: the transport was closed, the program ends"
        with self._calls:
            atexit.unregister(self._end)

    def mpi_ends(self) -> None:
        """Let no further call reach MPI, which would end the process; return when none is within it."""
        self._over = self._over or f"rank {self.rank}: MPI has ended; exchange before hvd.shutdown()"
        with self._calls:
            pass

    def _end(self) -> None:
        """Wait until all ranks end, unless this one is within an exchange; then close."""
        if not self._unfinished:
            # Ranks of which one has failed, or still trains, do not meet.
            with suppress(ExchangeError):
                together, began = self._ask(self._comm.Ibarrier, "the end"), time.monotonic()
                while (
                    not self._ask(together.Test, "the end") and time.monotonic() - began < _FAREWELL_SECONDS
                ):
                    time.sleep(_LONGEST_NAP)
        self.close()

    def _ask(self, call: Callable[[], Result], what: str) -> Result:
        """Call MPI: one thread at a time, and none after `close`."""
        with self._calls:
            self._require_open()
            try:
                return call()
            except MPI.Exception as error:
                self._over = f"rank {self.rank}: MPI failed: {what}"
                raise ExchangeError(f"{self._over}: {error}") from error

    def _require_length(self, length: int, expected: int, source: int) -> None:
        if length != expected:
            self._over = (
                f"rank {self.rank}: {length} bytes of a sum from rank {source}, not {expected}: ranks add "
                "up different numbers of values"
            )
            self._require_open()

    def begin_receive(self, into: Tensor, source: int, tag: int) -> Wait:
        """Begin to receive as many bytes as ``into`` has; what is returned waits until they are there."""
        number, status = next(self._numbers), MPI.Status()
        self._unfinished[number] = into
        buffer = [into.numpy(), MPI.BYTE]
        receiving = self._ask(lambda: self._comm.Irecv(buffer, source, tag), f"receiving from rank {source}")

        def wait() -> None:
            missing = f"nothing from rank {source}, which adds up the same values"
            self._wait(lambda: receiving.Test(status), missing, _MOVING_NAP)
            del self._unfinished[number]
            self._require_length(status.Get_count(MPI.BYTE), into.numel(), source)

        return wait

    def begin_send(self, message: Tensor, to: int, tag: int) -> _Sending:
        """Begin to send bytes, which must not be written before `finish_send`."""
        if message.numel() > _LONGEST_MESSAGE:
            raise ConfigurationError(
                f"rank {self.rank}: a message of {message.numel()} bytes; MPI takes {_LONGEST_MESSAGE}: "
                "exchange smaller buckets"
            )
        message = message.contiguous()
        number = next(self._numbers)
        self._unfinished[number] = message
        buffer = [message.numpy(), MPI.BYTE]
        return _Sending(number, self._ask(lambda: self._comm.Isend(buffer, to, tag), f"sending to rank {to}"))

    def finish_send(self, sending: _Sending, to: int) -> None:
        """Wait until the memory that is sent may be written again."""
        self._wait(sending.request.Test, f"rank {to} has not taken what it was sent", _MOVING_NAP)
        del self._unfinished[sending.number]

    def _received(self, source: int, tag: int) -> Tensor:
        status = MPI.Status()
        # A matched probe tells the length, and takes the message out of reach of others.
        arriving = self._wait(lambda: self._comm.Improbe(source, tag, status), f"nothing from rank {source}")
        received = torch.empty(status.Get_count(MPI.BYTE), dtype=torch.uint8, device="cpu")
        number = next(self._numbers)
        self._unfinished[number] = received
        buffer = [received.numpy(), MPI.BYTE]
        receiving = self._ask(lambda: arriving.Irecv(buffer), f"receiving from rank {source}")
        self._wait(receiving.Test, f"not all of a message from rank {source}", _MOVING_NAP)
        del self._unfinished[number]
        return received

    def _wait(
        self, look: Callable[[], Result | None], missing: str, longest_nap: float = _LONGEST_NAP
    ) -> Result:
        """Return what ``look`` finds, once it does."""
        nap, began = _SHORTEST_NAP, RUNNING.seconds()
        while not (found := self._ask(look, missing)):
            if RUNNING.seconds() - began > self._timeout:
                self._over = (
                    f"rank {self.rank}: {missing} within {self._timeout:g} s; all ranks must make the same "
                    "exchanges in the same order"
                )
            time.sleep(nap)
            nap = min(2 * nap, longest_nap)
        return found

    def _require_open(self) -> None:
        if self._over:
            raise ExchangeError(self._over)


class _Peers:
    """See `gradsieve_hvd.transport.peers.Peers`."""

    def __init__(self, transport: MpiTransport, tag: int) -> None:
        self._transport, self._tag = transport, tag

    def send(self, values: Tensor, to: int) -> Wait:
        sending = self._transport.begin_send(values.view(torch.uint8), to, self._tag)
        return lambda: self._transport.finish_send(sending, to)

    def receive(self, into: Tensor, source: int) -> Wait:
        return self._transport.begin_receive(into.view(torch.uint8), source, self._tag)


def _mpi_ends(_comm: MPI.Comm, _keyval: int, transport: weakref.ref[MpiTransport]) -> None:
    if (found := transport()) is not None:
        found.mpi_ends()


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
