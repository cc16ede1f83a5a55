"""Thread ranks behind links with a delay and a bandwidth, under clocks that only messages and work move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradsieve_hvd.transport.base import Arriving, Transport, begin_allgather, begin_alltoall
from gradsieve_hvd.transport.threads import ThreadTransport

_STAMP_BYTES = 8


@dataclass(frozen=True)
class TimedLink:
    """delay: seconds from the last byte's leaving until it arrives. rate: bytes per second from a rank."""

    delay: float
    rate: float


class TimedTransport:
    """A rank's transport by its own clock: a message tells when it arrives; who takes it waits until then.

    So times follow from the program alone, whatever the threads of the test do.

    now: of this rank's clock, in seconds; set it to let it do something else meanwhile.
    """

    def __init__(self, inner: ThreadTransport, link: TimedLink) -> None:
        self._inner, self._link = inner, link
        self.rank, self.size = inner.rank, inner.size
        self.now = self._free = 0.0

    def clock(self) -> float:
        return self.now

    def send_receive(self, message: Tensor, to: int, source: int) -> Tensor:
        return self._taken(self._inner.send_receive(self._stamped(message), to, source))

    def begin_allgather(self, message: Tensor, channel: int = 0) -> Arriving:
        # To all ranks goes the same: the stamp is of the last copy.
        for _ in range(self.size - 2):
            self._sent(message)
        arriving = self._inner.begin_allgather(self._stamped(message), channel)

        def taken() -> Iterator[Tensor]:
            for source, each in enumerate(arriving()):
                yield each[:-_STAMP_BYTES] if source == self.rank else self._taken(each)

        return taken

    def begin_alltoall(self, messages: Sequence[Tensor], channel: int = 0) -> Arriving:
        stamped = [each if to == self.rank else self._stamped(each) for to, each in enumerate(messages)]
        arriving = self._inner.begin_alltoall(stamped, channel)

        def taken() -> Iterator[Tensor]:
            for source, each in enumerate(arriving()):
                yield each if source == self.rank else self._taken(each)

        return taken

    def _sent(self, message: Tensor) -> float:
        """Return when a message arrives that is sent now."""
        self._free = max(self._free, self.now) + message.numel() / self._link.rate
        return self._free + self._link.delay

    def _stamped(self, message: Tensor) -> Tensor:
        stamp = torch.tensor([self._sent(message)], dtype=torch.float64)
        return torch.cat([message, stamp.view(torch.uint8)])

    def _taken(self, stamped: Tensor) -> Tensor:
        arrives = float(stamped[-_STAMP_BYTES:].clone().view(torch.float64))
        self.now = max(self.now, arrives)
        return stamped[:-_STAMP_BYTES]


class Busy:
    """A transport whose user does something with each message, by the clock of a `TimedTransport`, before it
    takes the next one.

    seconds: that this takes.
    """

    def __init__(self, inner: Transport, timed: TimedTransport, seconds: float) -> None:
        self._inner, self._timed, self._seconds = inner, timed, seconds
        self.rank, self.size = inner.rank, inner.size

    def send_receive(self, message: Tensor, to: int, source: int) -> Tensor:
        received = self._inner.send_receive(message, to, source)
        self._timed.now += self._seconds
        return received

    def begin_allgather(self, message: Tensor, channel: int = 0) -> Arriving:
        return self._used(begin_allgather(self._inner, message, channel))

    def begin_alltoall(self, messages: Sequence[Tensor], channel: int = 0) -> Arriving:
        return self._used(begin_alltoall(self._inner, messages, channel))

    def _used(self, arriving: Arriving) -> Arriving:
        def used() -> Iterator[Tensor]:
            self._timed.now += self._seconds  # with its own
            for source, each in enumerate(arriving()):
                yield each
                self._timed.now += self._seconds if source != self.rank else 0.0

        return used
