"""The buckets of an optimizer: frozen once rank 0 has seen in which order gradients become ready."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import torch
from torch.nn import Parameter

from gradsieve import CompressionConfig
from gradsieve_hvd.exchange import BucketExchange, DenseExchange
from gradsieve_hvd.exchange.dense import whole_dtype
from gradsieve_hvd.exchange.wide import WideExchange
from gradsieve_hvd.transport.messages import Messages

from .buckets import Bucket, DenseBucket, FactoredBucket, SparseBucket, cut_into_buckets
from .paths import Path
from .trailer import Trailer
from .whole_bucket import WholeBucket

BUCKET_ELEMENTS = 1 << 20
"""Of the gradients in a bucket, at least **(r)**: 4 MiB of fp32, so that the first leaves early."""


class BucketPlan:
    """Which tensor travels in which bucket, the same on all ranks.

    1. Until the first exchange is over, tensors lie in the reverse order of their names' registration, as
       backward mostly reaches them (PyTorch's DistributedDataParallel).
    2. Then rank 0 tells in which order they became ready there, and buckets are cut in that order.
    3. Tensors that come later get buckets of their own, after the others.
    4. There is a dense bucket, empty if need be: the first one also counts ranks that have joined, and tells
       how rank 0 wants compressed tensors to travel, if it chooses.
    5. Then their buckets are made again, of the same tensors, for the path that was chosen.

    Args:
        config: says which are compressed; the others travel in dense buckets, last.
        path: how they travel; fp64 gradients travel as they are.
        group_of: tensors of one group and one kind share a bucket.

    sparse, factored, dense: buckets of each kind, in the order in which they leave.
    """

    def __init__(
        self,
        config: CompressionConfig,
        path: Path,
        group_of: Mapping[str, int],
    ) -> None:
        self._config, self._path, self._group_of = config, path, group_of
        self._chosen = path
        self.sparse: list[SparseBucket | WholeBucket] = []
        self.factored: list[FactoredBucket] = []
        self.dense: list[DenseBucket] = []
        self._epoch = 0
        self._ready: list[str] | None = []
        self._bucket_of: dict[str, Bucket] = {}

    def restart(self) -> None:
        """Forget all buckets: new ranks know no order of readiness yet."""
        self.sparse, self.factored, self.dense, self._bucket_of = [], [], [], {}
        self._epoch, self._ready, self._chosen = 0, [], self._path

    def choose(self, path: Path) -> None:
        """Have compressed tensors travel by another path; all ranks call it between the same two rounds."""
        self._chosen, self._epoch = path, self._epoch + 1
        buckets, self.sparse = self.sparse, []
        for bucket in buckets:
            self._add_sparse(bucket.sizes)

    def bucket_of(self, name: str) -> Bucket:
        """Return the bucket that a tensor travels in."""
        return self._bucket_of[name]

    def fills(self, name: str) -> bool:
        """Whether the bucket that a tensor travels in is full."""
        return self._bucket_of[name].full

    @property
    def buckets(self) -> list[Bucket]:
        """All, in the order in which they leave."""
        return [*self.sparse, *self.factored, *self.dense]

    @property
    def names(self) -> set[str]:
        """All tensors that have a bucket."""
        return set(self._bucket_of)

    def extend(self, parameters: Mapping[str, Parameter]) -> None:
        """Give new tensors buckets; ``parameters`` in the order in which they are expected to be ready."""
        config, path = self._config, self._path
        sparse = {name: p.numel() for name, p in parameters.items() if path.selects(config, name, p)}
        for names in cut_into_buckets(sparse, BUCKET_ELEMENTS, self._group_of):
            self._add_sparse({name: sparse[name] for name in names})
        factored = {name: p for name, p in parameters.items() if path.factor_of(config, name, p)}
        sizes = {name: p.numel() for name, p in factored.items()}
        for names in cut_into_buckets(sizes, BUCKET_ELEMENTS, self._group_of):
            shapes = {name: factored[name].shape for name in names}
            dtype = whole_dtype(config.value_dtype)
            factors = FactoredBucket(f"bucket {len(self.factored)}", shapes, path.rank, dtype)
            self.factored.append(factors)
            self._bucket_of |= dict.fromkeys(names, factors)
        whole = {name: p for name, p in parameters.items() if name not in sparse and name not in factored}
        wide = {name: p.numel() for name, p in whole.items() if p.dtype == torch.float64}
        for names in cut_into_buckets(wide, BUCKET_ELEMENTS, self._group_of):
            self._add_dense({name: wide[name] for name in names}, torch.float64, WideExchange())
        others = {name: p.numel() for name, p in whole.items() if name not in wide}
        for names in cut_into_buckets(others, BUCKET_ELEMENTS, self._group_of):
            dense = DenseExchange(path.dense)
            self._add_dense({name: others[name] for name in names}, torch.float32, dense)
        if not self.dense:
            self._add_dense({}, torch.float32, DenseExchange(path.dense))

    def _add_sparse(self, sizes: Mapping[str, int]) -> None:
        name, path = f"bucket {len(self.sparse)}", self._chosen
        bucket: SparseBucket | WholeBucket
        if path.sparse is None:
            bucket = WholeBucket(name, sizes, DenseExchange(path.dense))
        else:
            exchange = path.sparse(self._config.value_dtype)
            bucket = SparseBucket(name, sizes, exchange, bounded=path.bounded, epoch=self._epoch)
        self.sparse.append(bucket)
        self._bucket_of |= dict.fromkeys(sizes, bucket)

    def _add_dense(self, sizes: Mapping[str, int], dtype: torch.dtype, exchange: BucketExchange) -> None:
        name, counts = f"dense bucket {len(self.dense)}", not self.dense
        trailer = Trailer() if counts and self._path.chooses else None
        bucket = DenseBucket(name, sizes, dtype, exchange, counts=counts, trailer=trailer)
        self.dense.append(bucket)
        self._bucket_of |= dict.fromkeys(sizes, bucket)

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
        self._ready, self._epoch = None, self._epoch + 1
        order = {name: place for place, name in enumerate(json.loads(told[0]))}
        by_readiness = sorted(parameters, key=lambda name: order.get(name, len(order)))
        self.sparse, self.factored, self.dense, self._bucket_of = [], [], [], {}
        self.extend({name: parameters[name] for name in by_readiness})

    def discard(self) -> None:
        """Forget what was put into buckets: the step is not going to be taken."""
        for bucket in self.buckets:
            bucket.discard()


def expected_order(named: Sequence[tuple[str, Parameter]]) -> dict[str, Parameter]:
    """Return parameters by name, in the order in which backward is expected to reach them."""
    return dict(reversed(named))
