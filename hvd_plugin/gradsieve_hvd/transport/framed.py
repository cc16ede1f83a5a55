"""Messages that say which bucket they belong to, so that ranks cannot add up different ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from torch import Tensor

from gradsieve.codec import Label, frame, unframe
from gradsieve.errors import PayloadError, RankMismatch

from .base import Arriving, Transport, begin_allgather, begin_alltoall

_MICRO = 1e-6


class FramedTransport:
    """A transport for one exchange of one bucket.

    Args:
        transport: carries the messages.
        label: what all of this rank's messages are labelled with; the other ranks' must be of the same plan
            and the same tensors.

    rank, size: see `Transport`. ready_seconds: how long each rank that was heard from took until its bucket
        was ready, by rank.

    A message says the latest that its sender knew of, its own or another rank's: so at the end of a ring all
    ranks know the last one's.
    """

    def __init__(self, transport: Transport, label: Label) -> None:
        self.inner, self._label = transport, label
        self.rank, self.size = transport.rank, transport.size
        self.ready_seconds: dict[int, float] = {}

    def send_receive(self, message: Tensor, to: int, source: int) -> Tensor:
        """Send to one rank and return what another one has sent at the same time.

        Raises:
            ExchangeError: a rank did not take part in time.
            PayloadError: what arrived is truncated, corrupted or foreign.
            RankMismatch: what arrived belongs to another plan or another bucket.
        """
        return self._content(self.inner.send_receive(frame(message, self._label), to, source), source)

    def begin_allgather(self, message: Tensor, channel: int = 0) -> Arriving:
        """See `Posting`; what arrives raises as `send_receive` does."""
        return self._contents(begin_allgather(self.inner, frame(message, self._label), channel), message)

    def begin_alltoall(self, messages: Sequence[Tensor], channel: int = 0) -> Arriving:
        """See `PostingBlocks`; what arrives raises as `send_receive` does."""
        framed = [frame(message, self._label) for message in messages]
        return self._contents(begin_alltoall(self.inner, framed, channel), messages[self.rank])

    def _contents(self, arriving: Arriving, own: Tensor) -> Arriving:
        def contents() -> Iterator[Tensor]:
            for source, received in enumerate(arriving()):
                yield own if source == self.rank else self._content(received, source)

        return contents

    def _content(self, received: Tensor, source: int) -> Tensor:
        try:
            label, content = unframe(received)
        except PayloadError as error:
            raise PayloadError(f"rank {self.rank}: message from rank {source}: {error}") from error
        self._require_same(label, source)
        self.ready_seconds[source] = label.ready_microseconds * _MICRO
        if label.ready_microseconds > self._label.ready_microseconds:
            self._label = dataclasses.replace(self._label, ready_microseconds=label.ready_microseconds)
        return content

    def _require_same(self, label: Label, source: int) -> None:
        ours = self._label
        if label.epoch != ours.epoch:
            raise RankMismatch(
                f"rank {self.rank} exchanges under plan {ours.epoch}, rank {source} under plan "
                f"{label.epoch}: all ranks must change plans at the same step"
            )
        if label.sizes != ours.sizes:
            raise RankMismatch(
                f"rank {self.rank} exchanges {_described(ours)}, rank {source} {_described(label)}: run the "
                "same model on all ranks"
            )


def _described(label: Label) -> str:
    shown = ", ".join(f"{size:,}" for size in label.sizes[:8])
    return (
        f"a bucket of {len(label.sizes)} tensors ({shown}{', ...' if len(label.sizes) > 8 else ''} elements)"
    )
