"""What travels for one exchange, over any transport, and how long it is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

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


@dataclass(slots=True)
class Leg:
    """Messages of an exchange that leave without waiting for others of it, or one after another.

    posted: whether they left without being waited for. By the clock, sent_at: when the first left; heard:
    when this rank found the last one that has come; until then ``sent_at``. sent_bytes: so far, messages to
    itself apart. waited_seconds: for messages, so far. rounds: how many of them wait for one another; None if
    that is for the path to say.
    """

    posted: bool
    sent_at: float
    heard: float
    sent_bytes: int = 0
    waited_seconds: float = 0.0
    rounds: int | None = None


class CountedTransport:
    """Any transport, for one exchange: allgathers have a channel of its own, and what travels is counted.

    Args:
        inner: carries the messages.
        channel: of allgathers.
        clock: in seconds.
        name: of what is exchanged, which is exchanged in every step.

    received_bytes: so far, messages to itself apart. inner: as given. legs: of the exchange, in the order in
    which they left. device_sums: see `SummingOnDevices`. in_order: see `TorchDistributedTransport`.
    """

    def __init__(
        self, inner: Transport, channel: int, clock: Callable[[], float] = time.monotonic, name: str = ""
    ) -> None:
        self.inner, self._channel, self._clock = inner, channel, clock
        self.rank, self.size = inner.rank, inner.size
        self.received_bytes = 0
        self.legs: list[Leg] = []
        self._made = clock()
        sums = inner.device_sums if isinstance(inner, SummingOnDevices) else None
        self.device_sums = None if sums is None else _CountedDeviceSums(self, sums, name)
        self.in_order: bool = getattr(inner, "in_order", False)

    @property
    def sent_bytes(self) -> int:
        """So far, messages to itself apart."""
        return sum(leg.sent_bytes for leg in self.legs)

    @property
    def sent_at(self) -> float:
        """When the first message left, by the clock; until then, when this was made."""
        return self.legs[0].sent_at if self.legs else self._made

    @property
    def heard(self) -> float:
        """When this rank found the last message that has come, by the clock; until then ``sent_at``."""
        return max((leg.heard for leg in self.legs), default=self._made)

    def send_receive(self, message: Tensor, to: int, source: int) -> Tensor:
        """See `Transport`."""
        leg = self._in_turn()
        with self.waiting(leg):
            received = self.inner.send_receive(message, to, source)
        leg.sent_bytes += message.numel() if to != self.rank else 0
        self.received_bytes += received.numel() if source != self.rank else 0
        return received

    def begin_allgather(self, message: Tensor, channel: int = 0) -> Arriving:  # noqa: ARG002 - has its own
        """See `Posting`; without one, a ring hands messages on, on the average as many bytes."""
        leg = self.posts(rounds=1) if isinstance(self.inner, Posting) else self._in_turn()
        arriving = begin_allgather(self.inner, message, self._channel)
        leg.sent_bytes += message.numel() * (self.size - 1)
        return self._counted(arriving, leg)

    def begin_alltoall(self, messages: Sequence[Tensor], channel: int = 0) -> Arriving:  # noqa: ARG002 - has its own
        """See `PostingBlocks`; without one, ranks swap messages when these are waited for."""
        if not isinstance(self.inner, PostingBlocks):
            return lambda: iter(alltoall(self, messages))
        leg = self.posts(rounds=1)
        arriving = self.inner.begin_alltoall(messages, self._channel)
        leg.sent_bytes = sum(message.numel() for message in messages) - messages[self.rank].numel()
        return self._counted(arriving, leg)

    def _counted(self, arriving: Arriving, leg: Leg) -> Arriving:
        def counted() -> Iterator[Tensor]:
            messages = arriving()
            for source in range(self.size):
                with self.waiting(leg):
                    received = next(messages)
                self.received_bytes += received.numel() if source != self.rank else 0
                yield received
            yield from messages  # none: the transport sees its own messages off

        return counted

    def posts(self, rounds: int | None = None) -> Leg:
        """Begin a leg of messages that leave without being waited for."""
        return self._leave(posted=True, rounds=rounds)

    def _in_turn(self) -> Leg:
        """Return the leg of messages that leave when it is their turn; the last one, or a new one."""
        if self.legs and not self.legs[-1].posted:
            return self.legs[-1]
        return self._leave(posted=False)

    def _leave(self, *, posted: bool, rounds: int | None = None) -> Leg:
        now = self._clock()
        self.legs.append(Leg(posted, now, now, rounds=rounds))
        return self.legs[-1]

    @contextmanager
    def waiting(self, leg: Leg) -> Iterator[None]:
        """Within, messages of a leg are waited for; at the end they have come."""
        began = self._clock()
        yield
        leg.heard = self._clock()
        leg.waited_seconds += leg.heard - began

    def count_sum(self, values: Tensor, leg: Leg) -> None:
        """Count what was sent for the sum of all ranks' ``values``: at once, or in parts."""
        times = 1 if leg.rounds == 1 else 2 / self.size
        size = round(times * values.numel() * values.element_size() * (self.size - 1))
        leg.sent_bytes += size
        self.received_bytes += size


class CountedAllReducing(CountedTransport):
    """A transport that sums by itself; its bytes are counted as those of a ring."""

    def __init__(self, inner: Transport, summing: AllReducing, channel: int, name: str = "") -> None:
        super().__init__(inner, channel, name=name)
        self._summing = summing

    def allreduce(self, values: Tensor) -> Tensor:
        """See `AllReducing`."""
        leg = self._in_turn()
        with self.waiting(leg):
            total = self._summing.allreduce(values)
        self.count_sum(values, leg)
        return total


class CountedBeginningSums(CountedTransport):
    """A transport that begins sums; see `CountedTransport`."""

    def __init__(self, inner: Transport, summing: BeginningSums, channel: int, name: str = "") -> None:
        super().__init__(inner, channel, name=name)
        self._summing = summing

    def begin_allreduce(self, values: Tensor, channel: int = 0) -> Callable[[], Tensor]:  # noqa: ARG002 - has its own
        """See `BeginningSums`."""
        leg = self.posts(rounds_of_sum(values.numel(), self.size))
        finish = self._summing.begin_allreduce(values, self._channel)

        def counted() -> Tensor:
            with self.waiting(leg):
                total = finish()
            self.count_sum(values, leg)
            return total

        return following(finish, counted, partial(self.waiting, leg))


class _CountedDeviceSums:
    """Sums on devices, under the name of what is exchanged; their bytes are counted as those of a ring."""

    def __init__(self, transport: CountedTransport, inner: DeviceSums, name: str) -> None:
        self._transport, self.inner, self._name = transport, inner, name
        self.device_type = inner.device_type

    def begin(self, values: Tensor, name: str) -> Callable[[], Tensor]:
        """See `DeviceSums`."""
        transport = self._transport
        leg = transport.posts()
        finish = self.inner.begin(values, self._name or name)

        def counted() -> Tensor:
            with transport.waiting(leg):
                total = finish()
            transport.count_sum(values, leg)
            return total

        return counted


def counted_transport(inner: Transport, channel: int, name: str = "") -> CountedTransport:
    """Return a transport that counts; what ``inner`` can do it can do."""
    if isinstance(inner, BeginningSums):
        return CountedBeginningSums(inner, inner, channel, name)
    if isinstance(inner, AllReducing):
        return CountedAllReducing(inner, inner, channel, name)
    return CountedTransport(inner, channel, name=name)
