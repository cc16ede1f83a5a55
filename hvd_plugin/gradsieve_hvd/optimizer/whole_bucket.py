"""Compressed gradients that travel whole for a while, as a fast link makes that cheaper."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gradsieve_hvd.exchange import BucketExchange, Reduced, begin_bucket_exchange
from gradsieve_hvd.transport.base import Transport

from .exchange_thread import Begun
from .trailer import Trailer


class WholeBucket:
    """Gradients of several compressed tensors, exchanged with all that waits in their residuals.

    Args:
        name: stands in errors and observers' notes.
        sizes: elements by name, in the order in which the tensors lie in the bucket.
        exchange: sums flat buckets. What it rejects returns to the residuals.

    ready_seconds: how long each rank took until its bucket was ready, by rank, as of the last exchange.
    """

    def __init__(self, name: str, sizes: Mapping[str, int], exchange: BucketExchange) -> None:
        self.name, self.sizes, self._exchange = name, dict(sizes), exchange
        self._elements = sum(sizes.values())
        self._trailer = Trailer()
        self._parts: dict[str, Tensor] = {}
        self._flat: Tensor | None = None

    @property
    def ready_seconds(self) -> Mapping[int, float]:
        """See above."""
        return self._trailer.ready_seconds

    def put(self, name: str, part: Tensor, ranks: int) -> None:
        """Add a tensor's accumulated gradient (fp32 [N], copied); ``ranks`` will exchange it."""
        if self._flat is None:
            places = self._elements + self._trailer.numbers(0, ranks, 0.0).numel()
            self._flat = torch.empty(places, dtype=torch.float32, device=part.device)
            own = self._flat[: self._elements].split(list(self.sizes.values()))
            self._places = dict(zip(self.sizes, own, strict=True))
        self._parts[name] = self._places[name].copy_(part)

    @property
    def full(self) -> bool:
        """Whether all tensors are there."""
        return len(self._parts) == len(self.sizes)

    def begun(self, ready_seconds: float) -> Begun[Reduced]:
        """Return what begins the exchange, and forget the gradients."""
        self._parts.clear()

        def begin(transport: Transport) -> Callable[[], Reduced]:
            assert self._flat is not None, "the bucket is full"
            told = self._trailer.numbers(transport.rank, transport.size, ready_seconds)
            self._flat[self._elements :] = told
            return begin_bucket_exchange(self._exchange, self._flat, transport)

        return begin

    def split(self, reduced: Reduced) -> list[tuple[str, Tensor, Tensor | None]]:
        """Return each tensor's part of the total and of what was rejected, views; None for nothing."""
        self._trailer.read(None if reduced.refused else reduced.total[self._elements :])
        sizes = list(self.sizes.values())
        totals = reduced.total[: self._elements].split(sizes)
        rejected: list[Tensor | None] = [None] * len(sizes)
        if reduced.rejected is not None:
            rejected = list(reduced.rejected[: self._elements].split(sizes))
        return list(zip(self.sizes, totals, rejected, strict=True))

    def discard(self) -> None:
        """Forget the gradients."""
        self._parts.clear()
