"""What carries bytes between ranks, and what is written once over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

from torch import Tensor


class Transport(Protocol):
    """A fixed set of ranks that send each other messages: uint8 [bytes] on the CPU, of any length.

    All ranks make the same calls in the same order. Messages are not mutated. Every wait has a deadline.

    rank: this one's number. size: how many there are.
    """

    @property
    def rank(self) -> int:
        """Number of the rank that calls, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def send_receive(self, message: Tensor, to: int, source: int) -> Tensor:
        """Send to one rank and return what another one has sent at the same time.

        Raises:
            ExchangeError: a rank did not take part in time.
        """
        ...


@runtime_checkable
class AllReducing(Protocol):
    """A transport whose library sums dense tensors faster than messages between neighbours could."""

    def allreduce(self, values: Tensor) -> Tensor:
        """Return the sum over ranks (fp32 [N], CPU, a new tensor); the same bits on every rank.

        Raises:
            ExchangeError: a rank did not take part in time.
        """
        ...


@runtime_checkable
class BeginningSums(Protocol):
    """A transport that can have several dense sums under way, and goes on with one while others travel."""

    def begin_allreduce(self, values: Tensor, channel: int = 0) -> Callable[[], Tensor]:
        """Send what can be sent without waiting, and return what waits and does the rest.

        Callable from any thread; what is returned is used once, in the thread that receives.

        Args:
            values: fp32 [N], CPU; as many on each rank. Not mutated, and must not be before the sum is there.
            channel: see `Posting.begin_allgather`.

        Raises:
            ExchangeError: the transport has failed before; by what is returned: a rank did not take part in
                time, or with another number of values.
        """
        ...


class DeviceSums(Protocol):
    """Sums dense tensors over ranks where they lie, on devices of one type.

    device_type: of these, as "cuda". All ranks must have their tensors there.
    """

    device_type: str

    def begin(self, values: Tensor, name: str) -> Callable[[], Tensor]:
        """Begin a sum without waiting, and return what waits for it, in any thread.

        Args:
            values: fp32 [N], on such a device; as many on each rank. Not mutated, and must not be before the
                sum is there.
            name: of the tensor, the same on all ranks; it is not under way twice.

        Raises:
            ExchangeError: by what is returned: a rank did not take part in time.
        """
        ...


@runtime_checkable
class SummingOnDevices(Protocol):
    """A transport beside which dense tensors may be summed without their crossing to the CPU.

    device_sums: does that; None if nothing can. Either holds on all ranks.
    """

    device_sums: DeviceSums | None


def device_sums_for(values: Tensor, transport: Transport) -> DeviceSums | None:
    """Return what sums a tensor where it lies, None if nothing does."""
    sums = transport.device_sums if isinstance(transport, SummingOnDevices) else None
    return sums if sums is not None and sums.device_type == values.device.type else None


Arriving = Callable[[], Iterator[Tensor]]
"""Yields the messages of all ranks, by rank, each when it has come. To be used up, in the order in which
allgathers were begun. Raises ExchangeError if a rank did not take part in time."""


@runtime_checkable
class Posting(Protocol):
    """A transport whose messages leave at once, whether or not anyone waits for them yet."""

    def begin_allgather(self, message: Tensor, channel: int = 0) -> Arriving:
        """Send a message to all ranks, and return without waiting.

        Callable from any thread; what is returned is used in the thread that receives.

        Args:
            message: see `Transport`; kept until what is returned was used up.
            channel: 0 or more. Allgathers of one channel are begun in the same order on all ranks; those of
                different ones, and `Transport.send_receive`, are told apart.

        Raises:
            ExchangeError: the transport has failed before.
        """
        ...


@runtime_checkable
class PostingBlocks(Protocol):
    """A `Posting` transport that can send each rank another message at once."""

    def begin_alltoall(self, messages: Sequence[Tensor], channel: int = 0) -> Arriving:
        """Send each rank its own message, and return without waiting; what is returned yields those of all
        ranks for this one. See `Posting.begin_allgather`.

        Args:
            messages: by rank, this one's among them; kept until an allgather of the channel that is begun
                later was used up.
            channel: of allgathers, with which these stand in one order.

        Raises:
            ExchangeError: the transport has failed before.
        """
        ...


def begin_allgather(transport: Transport, message: Tensor, channel: int = 0) -> Arriving:
    """Send a message to all ranks, and return without waiting, if the transport can; else all is done when
    what is returned is called. See `Posting`.

    Raises:
        ExchangeError: the transport has failed before.
    """
    if isinstance(transport, Posting):
        return transport.begin_allgather(message, channel)
    return partial(_around_the_ring, transport, message)


def allgather(transport: Transport, message: Tensor) -> list[Tensor]:
    """Return every rank's message, by rank.

    Raises:
        ExchangeError: a rank did not take part in time.
    """
    return list(begin_allgather(transport, message)())


def _around_the_ring(transport: Transport, message: Tensor) -> Iterator[Tensor]:
    """Yield every rank's message, by rank.

    In P - 1 rounds each rank hands on to the next what it got from the one before, so that every message
    crosses every link once.
    """
    rank, size = transport.rank, transport.size
    messages = {rank: message}
    for away in range(1, size):
        passed_on = messages[(rank - away + 1) % size]
        messages[(rank - away) % size] = transport.send_receive(
            passed_on, (rank + 1) % size, (rank - 1) % size
        )
    yield from (messages[each] for each in range(size))


def posts_blocks(transport: Transport) -> bool:
    """Whether `begin_alltoall` sends at once."""
    inner = getattr(transport, "inner", None)  # of what only adds something to another transport
    return isinstance(transport, PostingBlocks) if inner is None else posts_blocks(inner)


def begin_alltoall(transport: Transport, messages: Sequence[Tensor], channel: int = 0) -> Arriving:
    """Send each rank its own message, and return without waiting, if the transport can; else all is done when
    what is returned is called. See `PostingBlocks`.

    Raises:
        ExchangeError: the transport has failed before.
    """
    if isinstance(transport, PostingBlocks):
        return transport.begin_alltoall(messages, channel)
    return lambda: iter(alltoall(transport, messages))


def alltoall(transport: Transport, messages: Sequence[Tensor]) -> list[Tensor]:
    """Send each rank its own message, and return those of all ranks for this one, by rank.

    Raises:
        ExchangeError: a rank did not take part in time.
    """
    rank, size = transport.rank, transport.size
    received = {rank: messages[rank]}
    for away in range(1, size):
        to, source = (rank + away) % size, (rank - away) % size
        received[source] = transport.send_receive(messages[to], to, source)
    return [received[each] for each in range(size)]
