"""The buckets of an optimizer: frozen once rank 0 has seen in which order gradients become ready."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import torch
from torch.nn import Parameter

from gradsieve import CompressionConfig
from gradsieve_hvd.engine.parameters import compresses
from gradsieve_hvd.exchange import Exchange
from gradsieve_hvd.transport.messages import Messages

from .buckets import DenseBucket, SparseBucket, cut_into_buckets

BUCKET_ELEMENTS = 1 << 20
"""Of the gradients in a bucket, at least **(r)**: 4 MiB of fp32, so that the first leaves early."""


class BucketPlan:
    """Which tensor travels in which bucket, the same on all ranks.

    1. Until the first exchange is over, tensors lie in the reverse order of their names' registration, as
       backward mostly reaches them (PyTorch's DistributedDataParallel).
    2. Then rank 0 tells in which order they became ready there, and buckets are cut in that order.
    3. Tensors that come later get buckets of their own, after the others.

    Args:
        config: says which are compressed; the others travel in one dense bucket, last.
        make_exchange: makes a sparse bucket's exchange.
        bounded: see `SparseBucket`.
    """

    def __init__(
        self, config: CompressionConfig, make_exchange: Callable[[], Exchange], *, bounded: bool
    ) -> None:
        self._config, self._make_exchange, self._bounded = config, make_exchange, bounded
        self.sparse: list[SparseBucket] = []
        self.dense: list[DenseBucket] = []
        self._ready: list[str] | None = []
        self._bucket_of: dict[str, SparseBucket | DenseBucket] = {}

    def bucket_of(self, name: str) -> SparseBucket | DenseBucket:
        """Return the bucket that a tensor travels in."""
        return self._bucket_of[name]

    @property
    def buckets(self) -> list[SparseBucket | DenseBucket]:
        """All, in the order in which they leave."""
        return [*self.sparse, *self.dense]

    @property
    def names(self) -> set[str]:
        """All tensors that have a bucket."""
        return set(self._bucket_of)

    def extend(self, parameters: Mapping[str, Parameter]) -> None:
        """Give new tensors buckets; ``parameters`` in the order in which they are expected to be ready."""
        sparse = {name: p.numel() for name, p in parameters.items() if compresses(self._config, name, p)}
        for names in cut_into_buckets(sparse, BUCKET_ELEMENTS):
            bucket = SparseBucket(
                f"bucket {len(self.sparse)}",
                {name: sparse[name] for name in names},
                self._make_exchange(),
                bounded=self._bounded,
            )
            self.sparse.append(bucket)
            self._bucket_of |= dict.fromkeys(names, bucket)
        small = {name: p for name, p in parameters.items() if name not in sparse}
        if small:
            wide = any(parameter.dtype == torch.float64 for parameter in small.values())
            sizes = {name: parameter.numel() for name, parameter in small.items()}
            dense = DenseBucket(
                f"dense bucket {len(self.dense)}", sizes, torch.float64 if wide else torch.float32
            )
            self.dense.append(dense)
            self._bucket_of |= dict.fromkeys(sizes, dense)

    def note_ready(self, name: str) -> None:
        """A tensor's gradient became ready; remembered in the first exchange only."""
        if self._ready is not None:
            self._ready.append(name)

    def freeze(self, parameters: Mapping[str, Parameter], messages: Messages) -> None:
        """Cut the buckets in rank 0's order, once; all ranks call it after the first exchange.

        Raises:
            ExchangeError: a rank did not answer in time.
        """
        if self._ready is None:
            return
        told = messages.tell(json.dumps(self._ready).encode(), "order").wait()
        self._ready = None
        order = {name: place for place, name in enumerate(json.loads(told[0]))}
        by_readiness = sorted(parameters, key=lambda name: order.get(name, len(order)))
        self.sparse, self.dense, self._bucket_of = [], [], {}
        self.extend({name: parameters[name] for name in by_readiness})

    def discard(self) -> None:
        """Forget what was put into buckets: the step is not going to be taken."""
        for bucket in self.buckets:
            bucket.discard()


def expected_order(named: Sequence[tuple[str, Parameter]]) -> dict[str, Parameter]:
    """Return parameters by name, in the order in which backward is expected to reach them."""
    return dict(reversed(named))
