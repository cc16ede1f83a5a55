"""What travels for one exchange, over any transport, and how long it is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from gradsieve_hvd.transport.base import (
    AllReducing,
    Arriving,
    BeginningSums,
    DeviceSums,
    Posting,
    PostingBlocks,
    SummingOnDevices,
    Transport,
    alltoall,
    begin_allgather,
)
from gradsieve_hvd.transport.rest import following
from gradsieve_hvd.transport.sums import rounds_of_sum


class CountedTransport:
    """Any transport, for one exchange: allgathers have a channel of its own, and what travels is counted.

    Args:
        inner: carries the messages.
        channel: of allgathers.
        clock: in seconds.
        name: of what is exchanged, which is exchanged in every step.

    sent_bytes, received_bytes: so far, messages to itself apart. By the clock, sent_at: when the first
    message left; heard: when this rank found the last one that has come; until then, both when this was
    made. waited_seconds: for messages, so far; the rest between both moments this rank did something else.
    inner: as given. posted: whether a message has left without being waited for. sum_rounds: how many
    messages of a dense sum wait for one another; None if that is for the path to say. device_sums: see
    `SummingOnDevices`.
    """

    def __init__(
        self, inner: Transport, channel: int, clock: Callable[[], float] = time.monotonic, name: str = ""
    ) -> None:
        self.inner, self._channel, self._clock = inner, channel, clock
        self.rank, self.size = inner.rank, inner.size
        self.sent_bytes = self.received_bytes = 0
        self.waited_seconds = 0.0
        self.sent_at = self.heard = clock()
        self._sent = self.posted = False
        self.sum_rounds: int | None = None
        sums = inner.device_sums if isinstance(inner, SummingOnDevices) else None
        self.device_sums = None if sums is None else _CountedDeviceSums(self, sums, name)

    def send_receive(self, message: Tensor, to: int, source: int) -> Tensor:
        """See `Transport`."""
        with self.waiting():
            received = self.inner.send_receive(message, to, source)
        self.sent_bytes += message.numel() if to != self.rank else 0
        self.received_bytes += received.numel() if source != self.rank else 0
        return received

    def begin_allgather(self, message: Tensor, channel: int = 0) -> Arriving:  # noqa: ARG002 - has its own
        """See `Posting`; without one, a ring hands messages on, on the average as many bytes."""
        if isinstance(self.inner, Posting):
            self.sends()
            self.posted = True
        arriving = begin_allgather(self.inner, message, self._channel)
        self.sent_bytes += message.numel() * (self.size - 1)
        return self._counted(arriving)

    def begin_alltoall(self, messages: Sequence[Tensor], channel: int = 0) -> Arriving:  # noqa: ARG002 - has its own
        """See `PostingBlocks`; without one, ranks swap messages when these are waited for."""
        if not isinstance(self.inner, PostingBlocks):
            return lambda: iter(alltoall(self, messages))
        self.sends()
        self.posted = True
        arriving = self.inner.begin_alltoall(messages, self._channel)
        self.sent_bytes += sum(message.numel() for message in messages) - messages[self.rank].numel()
        return self._counted(arriving)

    def _counted(self, arriving: Arriving) -> Arriving:
        def counted() -> Iterator[Tensor]:
            messages = arriving()
            for source in range(self.size):
                with self.waiting():
                    received = next(messages)
                self.received_bytes += received.numel() if source != self.rank else 0
                yield received
            yield from messages  # none: the transport sees its own messages off

        return counted

    def sends(self) -> None:
        """Note that a message leaves."""
        if not self._sent:
            self._sent, self.sent_at = True, self._clock()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within, messages are waited for; at the end they have come."""
        self.sends()
        began = self._clock()
        yield
        self.heard = self._clock()
        self.waited_seconds += self.heard - began

    def count_sum(self, values: Tensor) -> None:
        """Count what was sent for the sum of all ranks' ``values``: at once, or in parts."""
        times = 1 if self.sum_rounds == 1 else 2 / self.size
        size = round(times * values.numel() * values.element_size() * (self.size - 1))
        self.sent_bytes += size
        self.received_bytes += size


class CountedAllReducing(CountedTransport):
    """A transport that sums by itself; its bytes are counted as those of a ring."""

    def __init__(self, inner: Transport, summing: AllReducing, channel: int, name: str = "") -> None:
        super().__init__(inner, channel, name=name)
        self._summing = summing

    def allreduce(self, values: Tensor) -> Tensor:
        """See `AllReducing`."""
        with self.waiting():
            total = self._summing.allreduce(values)
        self.count_sum(values)
        return total


class CountedBeginningSums(CountedTransport):
    """A transport that begins sums; see `CountedTransport`."""

    def __init__(self, inner: Transport, summing: BeginningSums, channel: int, name: str = "") -> None:
        super().__init__(inner, channel, name=name)
        self._summing = summing

    def begin_allreduce(self, values: Tensor, channel: int = 0) -> Callable[[], Tensor]:  # noqa: ARG002 - has its own
        """See `BeginningSums`."""
        self.sends()
        self.posted, self.sum_rounds = True, rounds_of_sum(values.numel(), self.size)
        finish = self._summing.begin_allreduce(values, self._channel)

        def counted() -> Tensor:
            with self.waiting():
                total = finish()
            self.count_sum(values)
            return total

        return following(finish, counted, self.waiting)


class _CountedDeviceSums:
    """Sums on devices, under the name of what is exchanged; their bytes are counted as those of a ring."""

    def __init__(self, transport: CountedTransport, inner: DeviceSums, name: str) -> None:
        self._transport, self.inner, self._name = transport, inner, name
        self.device_type = inner.device_type

    def begin(self, values: Tensor, name: str) -> Callable[[], Tensor]:
        """See `DeviceSums`."""
        transport = self._transport
        transport.sends()
        transport.posted = True
        finish = self.inner.begin(values, self._name or name)

        def counted() -> Tensor:
            with transport.waiting():
                total = finish()
            transport.count_sum(values)
            return total

        return counted


def counted_transport(inner: Transport, channel: int, name: str = "") -> CountedTransport:
    """Return a transport that counts; what ``inner`` can do it can do."""
    if isinstance(inner, BeginningSums):
        return CountedBeginningSums(inner, inner, channel, name)
    if isinstance(inner, AllReducing):
        return CountedAllReducing(inner, inner, channel, name)
    return CountedTransport(inner, channel, name=name)
