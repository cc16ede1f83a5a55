"""Which gradients travel together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gradsieve.codec import Label, Refusal
from gradsieve.density import entries_to_keep
from gradsieve.sparse_gradient import SparseGradient
from gradsieve_hvd.engine.parameters import ParameterState
from gradsieve_hvd.exchange import (
    BucketExchange,
    Exchange,
    Exchanged,
    LowRankExchange,
    Reduced,
    begin_bucket_exchange,
    begin_exchange,
)
from gradsieve_hvd.exchange.dense import FloatDtype
from gradsieve_hvd.exchange.lowrank import TensorSum
from gradsieve_hvd.transport.base import Transport
from gradsieve_hvd.transport.framed import FramedTransport

from .exchange_thread import Begun
from .trailer import Trailer
from .whole_bucket import WholeBucket


def cut_into_buckets(
    sizes: Mapping[str, int], limit: int, group_of: Mapping[str, int] | None = None
) -> list[tuple[str, ...]]:
    """Return the names in their order, cut where a bucket has at least ``limit`` elements.

    sizes: elements by name, in the order in which gradients become ready. group_of: names of one group are
        in one bucket, and come where the last of them would.
    """
    buckets: list[tuple[str, ...]] = []
    names: list[str] = []
    elements = 0
    for together in in_groups(sizes, group_of or {}):
        names += together
        elements += sum(sizes[name] for name in together)
        if elements >= limit:
            buckets.append(tuple(names))
            names, elements = [], 0
    return [*buckets, tuple(names)] if names else buckets


def in_groups(names: Iterable[str], group_of: Mapping[str, int]) -> list[list[str]]:
    """Return names in their order, those of a group together in the place of its last one."""
    members: dict[int | str, list[str]] = {}
    for name in names:
        group = group_of.get(name, name)
        members[group] = [*members.pop(group, []), name]
    return list(members.values())


class SparseBucket:
    """Compressed gradients of several tensors, exchanged as one flat gradient.

    Args:
        name: stands in errors and observers' notes.
        sizes: elements by name, in the order in which the tensors lie in the bucket.
        exchange: this bucket's own, as some remember where entries lie.
        bounded: whether the exchange may select again, down to as many entries as were asked for.
        epoch: number of the plan that the bucket belongs to.

    ready_seconds: how long ranks took until their buckets were ready, by rank, as far as this one has heard
    of it in the last exchange.
    """

    def __init__(
        self, name: str, sizes: Mapping[str, int], exchange: Exchange, *, bounded: bool, epoch: int
    ) -> None:
        self.name, self.sizes, self._epoch = name, dict(sizes), epoch
        self._exchange, self._bounded = exchange, bounded
        self._elements = sum(sizes.values())
        self._parts: dict[str, SparseGradient | Refusal] = {}
        self._most = 0
        self.ready_seconds: Mapping[int, float] = {}

    def put(self, state: ParameterState, part: SparseGradient | Refusal) -> None:
        """Add a tensor's selection, or its refusal."""
        self._parts[state.name] = part
        if state.layer is not None:
            self._most += entries_to_keep(state.layer.density, self.sizes[state.name])

    @property
    def full(self) -> bool:
        """Whether all tensors are there."""
        return len(self._parts) == len(self.sizes)

    def begun(self, ready_seconds: float) -> Begun[Exchanged]:
        """Return what begins the exchange, and forget the selections.

        ready_seconds: from when the last round had arrived until now; told to the other ranks.
        """
        label = Label(self._epoch, tuple(self.sizes.values()), round(1e6 * ready_seconds))
        parts, self._parts = self._parts, {}
        most, self._most = max(self._most, 1), 0
        refuse = any(isinstance(part, Refusal) for part in parts.values())

        def begin(transport: Transport) -> Callable[[], Exchanged]:
            placed = [
                (start, part.cpu())
                for name, start in self._starts()
                if not isinstance(part := parts[name], Refusal)
            ]
            gradient = SparseGradient.joined(placed, self._elements)
            bound = most if self._bounded else None
            framed = FramedTransport(transport, label)
            framed.ready_seconds[transport.rank] = ready_seconds
            self.ready_seconds = framed.ready_seconds
            return begin_exchange(self._exchange, gradient, framed, bound, refuse=refuse)

        return begin

    def split(self, exchanged: Exchanged) -> list[tuple[str, list[SparseGradient], SparseGradient]]:
        """Return each tensor's part of the summands and of what was rejected."""
        sizes = list(self.sizes.values())
        rejected, *summands = (each.split(sizes) for each in (exchanged.rejected, *exchanged.summands))
        return [
            (name, [summand[number] for summand in summands], rejected[number])
            for number, name in enumerate(self.sizes)
        ]

    def discard(self) -> None:
        """Forget the selections: the step is not going to be taken."""
        self._parts, self._most = {}, 0

    def _starts(self) -> list[tuple[str, int]]:
        starts, at = [], 0
        for name, size in self.sizes.items():
            starts.append((name, at))
            at += size
        return starts


@dataclass(frozen=True, slots=True, eq=False)
class FactoredSums:
    """What came of a `FactoredBucket`. given: each tensor's gradient, which may be overwritten. sums: None if
    a rank refused.
    """

    given: list[Tensor]
    sums: list[TensorSum] | None

    @property
    def refused(self) -> bool:
        """Whether a rank did."""
        return self.sums is None


class FactoredBucket:
    """Gradients of several matrices, exchanged as two thin factors each.

    Args:
        name: see `SparseBucket`.
        shapes: by name, in the order in which the tensors lie in the bucket.
        rank: columns of the factors.
        value_dtype: that these are sent in.
    """

    def __init__(
        self, name: str, shapes: Mapping[str, Sequence[int]], rank: int, value_dtype: FloatDtype = "float32"
    ) -> None:
        self.name = name
        self.sizes = {each: math.prod(shape) for each, shape in shapes.items()}
        self._exchange = LowRankExchange([*shapes.values()], rank, value_dtype=value_dtype)
        self._first: list[Tensor] = self._exchange.state_dict()["factors"]
        self._parts: dict[str, Tensor] = {}
        self._copies: dict[str, Tensor] = {}
        self._factors: dict[str, Tensor | None] = {}

    def put(self, name: str, part: Tensor, factor: Tensor | None, *, owned: bool) -> None:
        """Add a tensor's gradient (fp32 [N]) and the factor that its last exchange left, if any.

        owned: whether it is the bucket's until the end of the step; else, and from another device, it is
            copied.
        """
        if not owned or part.device.type != "cpu":
            if name not in self._copies:
                self._copies[name] = torch.empty(self.sizes[name], dtype=torch.float32, device="cpu")
            part = self._copies[name].copy_(part)
        self._parts[name], self._factors[name] = part, factor

    @property
    def full(self) -> bool:
        """Whether all tensors are there."""
        return len(self._parts) == len(self.sizes)

    def begun(self, ready_seconds: float) -> Begun[FactoredSums]:  # noqa: ARG002 - no frame
        """Return what begins the exchange, all of which waits, and forget the gradients."""
        given, self._parts = [self._parts[name] for name in self.sizes], {}
        known = [self._factors[name] for name in self.sizes]
        factors = [first if own is None else own for own, first in zip(known, self._first, strict=True)]

        def exchange(transport: Transport) -> FactoredSums:
            self._exchange.load_state_dict({"factors": factors})
            return FactoredSums(given, self._exchange.exchange_tensors(given, transport))

        return lambda transport: partial(exchange, transport)

    def split(self, result: FactoredSums) -> list[tuple[str, Tensor, TensorSum | None, Tensor]]:
        """Return each tensor's given gradient, its sum (None if a rank refused), and its new factor."""
        sums = [None] * len(self.sizes) if result.sums is None else result.sums
        factors = self._exchange.state_dict()["factors"]
        return list(zip(self.sizes, result.given, sums, factors, strict=True))

    def discard(self) -> None:
        """Forget the gradients."""
        self._parts = {}


class DenseBucket:
    """Gradients that are not compressed, exchanged whole.

    Args:
        name, sizes: see `SparseBucket`.
        dtype: that the exchange takes.
        exchange: sums flat buckets. What it rejects (fp16's rounding) is lost, as there are no residuals.
        counts: whether one element more travels along, in which ranks that have joined are counted.
        trailer: what else does; None for nothing.

    joined: whether this rank has. absent: how many ranks had in the last exchange; None if one refused.
    """

    def __init__(
        self,
        name: str,
        sizes: Mapping[str, int],
        dtype: torch.dtype,
        exchange: BucketExchange,
        *,
        counts: bool = False,
        trailer: Trailer | None = None,
    ) -> None:
        self.name, self.sizes, self._dtype, self._exchange = name, dict(sizes), dtype, exchange
        self.counts, self.joined, self.trailer = counts, False, trailer
        self.absent: int | None = None
        self._parts: dict[str, Tensor] = {}

    def put(self, name: str, part: Tensor) -> None:
        """Add a tensor's gradient (any shape), which is not mutated and must not be before it is sent."""
        self._parts[name] = part

    @property
    def full(self) -> bool:
        """Whether all tensors are there."""
        return len(self._parts) == len(self.sizes)

    def begun(self, ready_seconds: float) -> Begun[Reduced]:
        """Return what begins the exchange, and forget the gradients."""
        parts, self._parts = self._parts, {}
        count = torch.full((int(self.counts),), float(self.joined), dtype=self._dtype, device="cpu")

        def begin(transport: Transport) -> Callable[[], Reduced]:
            devices = {part.device for part in parts.values()}
            device = devices.pop() if len(devices) == 1 else count.device
            flat = [parts[name].detach().reshape(-1) for name in self.sizes] + [count]
            if self.trailer is not None:
                flat.append(self.trailer.numbers(transport.rank, transport.size, ready_seconds))
            together = torch.cat([part.to(device, self._dtype) for part in flat])
            return begin_bucket_exchange(self._exchange, together, transport)

        return begin

    def split(self, reduced: Reduced, divisor: float) -> list[tuple[str, Tensor]]:
        """Return each tensor's part of the total over ``divisor``, a view; NaN if a rank refused."""
        elements = sum(self.sizes.values())
        if self.counts:
            self.absent = None if reduced.refused else round(float(reduced.total[elements]))
        if self.trailer is not None:
            self.trailer.read(None if reduced.refused else reduced.total[elements + int(self.counts) :])
        if reduced.refused:
            reduced.total.fill_(torch.nan)
        totals = reduced.total[:elements].div_(divisor).split(list(self.sizes.values()))
        return list(zip(self.sizes, totals, strict=True))

    def discard(self) -> None:
        """Forget the gradients."""
        self._parts = {}


Bucket = SparseBucket | FactoredBucket | WholeBucket | DenseBucket
