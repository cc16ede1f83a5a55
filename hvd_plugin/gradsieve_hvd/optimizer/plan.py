"""The buckets of an optimizer: frozen once rank 0 has seen in which order gradients become ready."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

import torch
from torch.nn import Parameter

from gradsieve import CompressionConfig
from gradsieve_hvd.exchange import BucketExchange, DenseExchange
from gradsieve_hvd.exchange.dense import whole_dtype
from gradsieve_hvd.exchange.wide import WideExchange
from gradsieve_hvd.transport.messages import Messages

from .buckets import Bucket, DenseBucket, FactoredBucket, SparseBucket, cut_into_buckets, in_groups
from .paths import Path
from .trailer import Trailer
from .whole_bucket import WholeBucket

BUCKET_ELEMENTS = 1 << 20
"""Of the gradients in a bucket, at least **(r)**: 4 MiB of fp32, so that the first leaves early."""

_FEW_ELEMENTS = 8 * 1024
"""Are not worth an exchange more: over 100 Mbit/s they take four ranks 4 ms."""


class BucketPlan:
    """Which tensor travels in which bucket, the same on all ranks.

    1. Until the first exchange is over, tensors lie in the reverse order of their names' registration, as
       backward mostly reaches them (PyTorch's DistributedDataParallel).
    2. Then rank 0 tells in which order they became ready there, and buckets are cut in that order.
    3. Tensors that come later get buckets of their own, after the others.
    4. What travels whole leaves last, but for what is ready when the last bucket but one of compressed
       tensors is full: that leaves then **(r)**, so that less is left to send when backward has ended.
    5. There is a dense bucket, empty if need be: the first one also counts ranks that have joined, and tells
       how rank 0 wants compressed tensors to travel, if it chooses.
    6. Then their buckets are made again, of the same tensors, for the path that was chosen.

    Args:
        config: says which are compressed; the others travel in dense buckets.
        path: how they travel; fp64 gradients travel as they are.
        group_of: tensors of one group and one kind share a bucket.

    sparse, factored, early, dense: buckets of each kind, in the order in which they leave; ``early`` ones are
    dense, too.
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
        self.early: list[DenseBucket] = []
        self.dense: list[DenseBucket] = []
        self._epoch = 0
        self._ready: list[str] | None = []
        self._bucket_of: dict[str, Bucket] = {}
        self._waiting: dict[Bucket, list[str]] = {}

    def restart(self) -> None:
        """Forget all buckets: new ranks know no order of readiness yet."""
        self._forget_buckets()
        self._epoch, self._ready, self._chosen = 0, [], self._path

    def _forget_buckets(self) -> None:
        self.sparse, self.factored, self.early, self.dense, self._bucket_of = [], [], [], [], {}

    def choose(self, path: Path) -> None:
        """Have compressed tensors travel by another path; all ranks call it between the same two rounds."""
        self._chosen, self._epoch = path, self._epoch + 1
        buckets, self.sparse = self.sparse, []
        for bucket in buckets:
            self._add_sparse(bucket.sizes)

    def bucket_of(self, name: str) -> Bucket:
        """Return the bucket that a tensor travels in."""
        return self._bucket_of[name]

    @property
    def buckets(self) -> list[Bucket]:
        """All, in the order in which they leave."""
        compressed = [*self.sparse, *self.factored]
        return [*compressed[:-1], *self.early, *compressed[-1:], *self.dense]

    @property
    def names(self) -> set[str]:
        """All tensors that have a bucket."""
        return set(self._bucket_of)

    def extend(self, parameters: Mapping[str, Parameter]) -> None:
        """Give new tensors buckets; ``parameters`` in the order in which they are expected to be ready."""
        config, path = self._config, self._path
        sparse = {name: p.numel() for name, p in parameters.items() if path.selects(config, name, p)}
        compressed = cut_into_buckets(sparse, BUCKET_ELEMENTS, self._group_of)
        for names in compressed:
            self._add_sparse({name: sparse[name] for name in names})
        factored = {name: p for name, p in parameters.items() if path.factor_of(config, name, p)}
        sizes = {name: p.numel() for name, p in factored.items()}
        for names in cut_into_buckets(sizes, BUCKET_ELEMENTS, self._group_of):
            compressed.append(names)
            shapes = {name: factored[name].shape for name in names}
            dtype = whole_dtype(config.value_dtype)
            factors = FactoredBucket(f"bucket {len(self.factored)}", shapes, path.rank, dtype)
            self.factored.append(factors)
            self._bucket_of |= dict.fromkeys(names, factors)
        whole = {name: p for name, p in parameters.items() if name not in sparse and name not in factored}
        wide = {name: p.numel() for name, p in whole.items() if p.dtype == torch.float64}
        for names in cut_into_buckets(wide, BUCKET_ELEMENTS, self._group_of):
            self._add_dense(self.dense, {name: wide[name] for name in names}, WideExchange())
        others = {name: p.numel() for name, p in whole.items() if name not in wide}
        early = self._early(list(parameters), others, compressed)
        late = {name: size for name, size in others.items() if name not in early}
        for added, sizes in ((self.dense, late), (self.early, early)):
            for names in cut_into_buckets(sizes, BUCKET_ELEMENTS, self._group_of):
                each = {name: sizes[name] for name in names}
                self._add_dense(added, each, DenseExchange(path.dense))
        if not self.dense:
            self._add_dense(self.dense, {}, DenseExchange(path.dense))

    def _early(
        self, order: Sequence[str], whole: Mapping[str, int], compressed: Sequence[Collection[str]]
    ) -> dict[str, int]:
        """Return those of the tensors that travel whole that are ready when the last bucket but one of
        compressed ones is full; none if they are so few that they take less time than an exchange more.
        """
        if len(compressed) < 2:
            return {}
        place = {name: number for number, name in enumerate(order)}
        full = max(place[name] for name in compressed[-2])
        early = {
            name: whole[name]
            for together in in_groups(whole, self._group_of)
            if all(place[name] < full for name in together)
            for name in together
        }
        return early if sum(early.values()) > _FEW_ELEMENTS else {}

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

    def _add_dense(
        self, buckets: list[DenseBucket], sizes: Mapping[str, int], exchange: BucketExchange
    ) -> None:
        counts = buckets is self.dense and not self.dense
        name = f"dense bucket {len(self.dense) + len(self.early)}"
        trailer = Trailer() if counts and self._path.chooses else None
        dtype = torch.float64 if isinstance(exchange, WideExchange) else torch.float32
        bucket = DenseBucket(name, sizes, dtype, exchange, counts=counts, trailer=trailer)
        buckets.append(bucket)
        self._bucket_of |= dict.fromkeys(sizes, bucket)

    def ready(self, name: str) -> Collection[str]:
        """A tensor's gradient has become ready: return the tensors of its bucket if it was the last of them,
        else nothing. The order is remembered in the first exchange only.
        """
        if self._ready is not None:
            self._ready.append(name)
        bucket = self._bucket_of[name]
        waiting = self._waiting.setdefault(bucket, [])
        waiting.append(name)
        return waiting if len(waiting) == len(bucket.sizes) else ()

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
        self._forget_buckets()
        self.extend({name: parameters[name] for name in by_readiness})

    def discard(self) -> None:
        """Forget what was put into buckets: the step is not going to be taken."""
        self._waiting.clear()
        for bucket in self.buckets:
            bucket.discard()


def expected_order(named: Sequence[tuple[str, Parameter]]) -> dict[str, Parameter]:
    """Return parameters by name, in the order in which backward is expected to reach them."""
    return dict(reversed(named))
