"""Flat buckets of which every element travels, as fp32, fp16 or bf16."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from gradsieve.codec import Payload, ValueDtype, decode, encode_all, encode_refusal, sent_values
from gradsieve.kernels.magnitude import all_finite
from gradsieve_hvd.transport.base import (
    AllReducing,
    Arriving,
    BeginningSums,
    Transport,
    begin_allgather,
    begin_alltoall,
    device_sums_for,
    posts_blocks,
)
from gradsieve_hvd.transport.rest import Rest, following
from gradsieve_hvd.transport.sums import AT_ONCE_ELEMENTS

from .blocks import equal_bounds
from .phases import phase
from .ring_rounds import allgather_blocks, reduce_scatter

_AT_ONCE_HALVES = 2 * AT_ONCE_ELEMENTS  # what they cost 4 ranks in bytes takes 100 Mbit/s a millisecond
_SOLE = "bucket"  # of those that a transport carries at a time; an optimizer's know better

FloatDtype = Literal["float32", "float16", "bfloat16"]


def whole_dtype(values: ValueDtype) -> FloatDtype:
    """Return the number format of what is not selected, where selected values may be sent in ``values``."""
    if values in ("float32", "float16"):
        return values
    return "bfloat16"


@dataclass(frozen=True, slots=True, eq=False)
class Reduced:
    """What came of an exchange of dense buckets.

    total: fp32 [N], the sum over all ranks; the same bits on every rank. On the CPU, or where the gradient
        lies if it was summed there.
    rejected: fp32 [N], what this rank took away from the sum; None for nothing. Belongs into its residual,
        if it has one: the sum over all ranks of what they gave is ``total`` plus the sum of all
        ``rejected``, up to the rounding of fp32 sums.
    refused: whether a rank refused to take part. Then ``total`` is zero, ``rejected`` is None, and the step
        must be rolled back.
    """

    total: Tensor
    rejected: Tensor | None = None
    refused: bool = False


def refused_bucket(elements: int) -> Reduced:
    """Return what comes of an exchange in which a rank refused."""
    return Reduced(torch.zeros(elements, dtype=torch.float32, device="cpu"), refused=True)


class BucketExchange(Protocol):
    """Sums flat buckets over the ranks of a transport. All ranks call it, with the same settings."""

    def exchange(self, gradient: Tensor, transport: Transport, *, refuse: bool = False) -> Reduced:
        """Return the sum of all ranks' buckets. All ranks call it with buckets of one size.

        Args:
            gradient: fp32 [N], this rank's, on any device; not mutated. One that is not finite is refused.
            transport: to the other ranks.
            refuse: take part without a gradient, and have all ranks know that.

        Raises:
            ExchangeError: a rank did not take part in time.
            PayloadError: what another rank sent cannot be decoded, or is of another size.
        """
        ...


@runtime_checkable
class BeginningBuckets(Protocol):
    """A `BucketExchange` that can send before it has heard of another rank."""

    def begin(self, gradient: Tensor, transport: Transport, *, refuse: bool = False) -> Callable[[], Reduced]:
        """Send, and return what waits for the others and sums; see `BucketExchange.exchange`."""
        ...


def begin_bucket_exchange(
    exchange: BucketExchange, gradient: Tensor, transport: Transport
) -> Callable[[], Reduced]:
    """Do what an exchange can do without waiting, and return what does the rest."""
    if isinstance(exchange, BeginningBuckets):
        return exchange.begin(gradient, transport)
    return partial(exchange.exchange, gradient, transport)


class DenseExchange:
    """The sum of flat buckets for 2 (P - 1) / P N values sent by each rank, the least there can be.

    Fp32 values:

    1. The transport sums where it can, on GPUs without leaving them where NCCL does. Else cut the bucket into
       P equal blocks.
    2. For s = 0 to P - 2 rank i sends block i - s, receives block i - s - 1, and adds its own values. It then
       has the sum of block i + 1, added up in the order of ranks from i + 2 on.
    3. All blocks travel on around the ring, as they are.

    Values of two bytes, which no library may sum, as nobody would know what that has lost:

    1. Every rank sends each other one its block. It adds up what it gets for its own in fp32, in the order of
       ranks.
    2. It sends the sum to all. So a value is rounded when it is sent and once in the sum, whatever P.
    3. Few values every rank sends to all others instead: they take less time than a second round.

    Args:
        value_dtype: number format on the wire. In fp16 and bf16 what is too large becomes the largest finite
            number; the excess is rejected, as is what rounding takes away.
    """

    def __init__(self, value_dtype: FloatDtype = "float32") -> None:
        self._value_dtype = value_dtype

    def begin(self, gradient: Tensor, transport: Transport, *, refuse: bool = False) -> Callable[[], Reduced]:
        """Send what can be sent without waiting, and return what does the rest; see `BucketExchange`."""
        if self._value_dtype != "float32":
            gradient = gradient.detach().cpu()
            if gradient.numel() <= _AT_ONCE_HALVES:
                return self._begin_at_once(gradient, transport, refuse=refuse)
            return self._begin_by_blocks(gradient, transport, refuse=refuse)
        if (sums := device_sums_for(gradient, transport)) is not None:
            # Not looked at first, which would wait for the device: what is not finite shows in the sum.
            given = torch.full_like(gradient, torch.nan) if refuse else gradient.detach()
            finish = sums.begin(given, _SOLE)
            return lambda: _reduced(finish)
        given = _given(gradient.detach().cpu(), refuse=refuse)
        if isinstance(transport, BeginningSums):
            with phase("all-reduce"):
                finish = transport.begin_allreduce(given)
            return following(finish, lambda: _reduced(finish), partial(phase, "all-reduce"))
        if isinstance(transport, AllReducing):
            return partial(_reduced, partial(transport.allreduce, given))
        return partial(_around_the_ring, given, transport)

    def exchange(self, gradient: Tensor, transport: Transport, *, refuse: bool = False) -> Reduced:
        """Return the sum; see `BucketExchange`."""
        return self.begin(gradient, transport, refuse=refuse)()

    def _begin_at_once(
        self, gradient: Tensor, transport: Transport, *, refuse: bool
    ) -> Callable[[], Reduced]:
        elements = gradient.numel()
        arriving = begin_allgather(transport, self._payload(gradient, refuse=refuse))
        rejected = None if refuse else gradient - sent_values(gradient, self._value_dtype)

        def finish() -> Reduced:
            with phase("all-gather"):
                total = _added_up([decode(message, elements) for message in arriving()])
            return refused_bucket(elements) if total is None else Reduced(total, rejected)

        return finish

    def _begin_by_blocks(
        self, gradient: Tensor, transport: Transport, *, refuse: bool
    ) -> Callable[[], Reduced]:
        elements, rank = gradient.numel(), transport.rank
        refuse = refuse or not all_finite(gradient)
        bounds = equal_bounds(elements, transport.size)
        sizes = [stop - start for start, stop in itertools.pairwise(bounds)]
        blocks = [self._payload(block, refuse=refuse) for block in gradient.split(sizes)]
        with phase("reduce-scatter"):
            arriving = begin_alltoall(transport, blocks)
        rejected = None if refuse else gradient - sent_values(gradient, self._value_dtype)

        def add_up() -> tuple[Tensor | None, Arriving]:
            with phase("reduce-scatter"):
                added = _added_up([decode(message, sizes[rank]) for message in arriving()])
            payload = encode_refusal(sizes[rank]) if added is None else self._payload(added)
            with phase("all-gather"):
                return added, begin_allgather(transport, payload)

        def put_together(between: tuple[Tensor | None, Arriving]) -> Reduced:
            added, messages = between
            with phase("all-gather"):
                sums = [decode(each, size) for each, size in zip(messages(), sizes, strict=True)]
            if added is None or rejected is None or any(each.refused for each in sums):
                return refused_bucket(elements)
            rejected.split(sizes)[rank].add_(added - sent_values(added, self._value_dtype))
            return Reduced(torch.cat([each.values for each in sums]), rejected)

        rest = Rest(add_up, put_together)
        return rest if posts_blocks(transport) else rest.__call__

    def _payload(self, values: Tensor, *, refuse: bool = False) -> Tensor:
        if refuse or not all_finite(values):
            return encode_refusal(values.numel())
        return encode_all(values, self._value_dtype)


def _added_up(payloads: Sequence[Payload]) -> Tensor | None:
    """Return the sum in fp32, None if a rank refused or it is not finite."""
    total = torch.zeros(payloads[0].elements, dtype=torch.float32, device="cpu")
    for each in payloads:
        if each.refused:
            return None
        total += each.values
    return total if all_finite(total) else None


def _around_the_ring(given: Tensor, transport: Transport) -> Reduced:
    elements = given.numel()
    bounds = equal_bounds(elements, transport.size)

    def own(number: int) -> Tensor:
        return given[bounds[number] : bounds[number + 1]]

    def packed(values: Tensor) -> Tensor:
        return encode_all(values, "float32") if all_finite(values) else encode_refusal(values.numel())

    def added(number: int, received: Tensor) -> Tensor:
        mine = own(number)
        block = decode(received, mine.numel())
        return encode_refusal(mine.numel()) if block.refused else packed(block.values.add_(mine))

    block, message = reduce_scatter(transport, packed(own(transport.rank)), added)
    total = torch.empty(elements, dtype=torch.float32, device="cpu")
    for number, each in enumerate(allgather_blocks(transport, block, message)):
        start, stop = bounds[number : number + 2]
        decoded = decode(each, stop - start)
        if decoded.refused:
            return refused_bucket(elements)
        total[start:stop] = decoded.values
    return Reduced(total)


def _given(gradient: Tensor, *, refuse: bool) -> Tensor:
    # NaN is what a refusal looks like in a sum: every rank gets it.
    refuse = refuse or not all_finite(gradient)
    return torch.full_like(gradient, torch.nan) if refuse else gradient


def _reduced(finish: Callable[[], Tensor]) -> Reduced:
    with phase("all-reduce"):
        total = finish()
    return Reduced(total) if all_finite(total) else refused_bucket(total.numel())
