"""A transport that has all messages before it hands out the first."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from gradsieve_hvd.transport.base import Arriving, Transport, begin_allgather


class ReceivedTransport:
    """Hands out an allgather's messages when all have come: whoever cannot read one of them and stops leaves
    none behind that a later exchange would take for its own.
    """

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.rank, self.size = inner.rank, inner.size

    def send_receive(self, message: Tensor, to: int, source: int) -> Tensor:
        """See `Transport`."""
        return self._inner.send_receive(message, to, source)

    def begin_allgather(self, message: Tensor, channel: int = 0) -> Arriving:
        """See `Posting`."""
        arriving = begin_allgather(self._inner, message, channel)

        def received() -> Iterator[Tensor]:
            return iter(list(arriving()))

        return received
