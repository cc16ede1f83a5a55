"""Flat buckets of which every element travels, as fp32, fp16 or bf16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from gradsieve.codec import ValueDtype, decode, encode_all, encode_refusal, sent_values
from gradsieve.kernels.magnitude import all_finite
from gradsieve_hvd.transport.base import (
    AllReducing,
    BeginningSums,
    Transport,
    begin_allgather,
    device_sums_for,
)
from gradsieve_hvd.transport.ring_sum import AT_ONCE_ELEMENTS

from .blocks import equal_bounds
from .phases import phase
from .ring_rounds import allgather_blocks, reduce_scatter

_AT_ONCE_HALVES = 2 * AT_ONCE_ELEMENTS  # as many bytes
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
    """Reduce-scatter and all-gather around a ring: 2 (P - 1) / P N values sent, the least there can be.

    1. Cut the bucket into P equal blocks.
    2. For s = 0 to P - 2 rank i sends block i - s in the wire's type, receives block i - s - 1, and adds its
       own values in fp32. It then has the sum of block i + 1, added up in the order of ranks from i + 2 on.
    3. All blocks travel on around the ring, as they are.

    Fp32 values go by the transport's own sum where it has one, on GPUs without leaving them where NCCL sums.
    The others do not, as nobody would know what the sums inside have lost. Few of them every rank sends to
    all others, which takes less time than the rounds of a ring, and rounds each value only once.

    Args:
        value_dtype: number format on the wire. In fp16 and bf16 what is too large becomes the largest finite
            number; the excess is rejected, as is what rounding takes away.
    """

    def __init__(self, value_dtype: FloatDtype = "float32") -> None:
        self._value_dtype = value_dtype

    def begin(self, gradient: Tensor, transport: Transport, *, refuse: bool = False) -> Callable[[], Reduced]:
        """Send what can be sent without waiting, and return what does the rest; see `BucketExchange`."""
        sums = device_sums_for(gradient, transport)
        if self._value_dtype == "float32" and sums is not None:
            # Not looked at first, which would wait for the device: what is not finite shows in the sum.
            given = torch.full_like(gradient, torch.nan) if refuse else gradient.detach()
            finish = sums.begin(given, _SOLE)
            return lambda: _reduced(finish)
        if self._value_dtype == "float32" and isinstance(transport, BeginningSums):
            given = _given(gradient.detach().cpu(), refuse=refuse)
            with phase("all-reduce"):
                finish = transport.begin_allreduce(given)
            return lambda: _reduced(finish)
        if self._value_dtype != "float32" and gradient.numel() <= _AT_ONCE_HALVES:
            return self._begin_at_once(gradient.detach().cpu(), transport, refuse=refuse)
        return partial(self._around_the_ring, gradient, transport, refuse=refuse)

    def exchange(self, gradient: Tensor, transport: Transport, *, refuse: bool = False) -> Reduced:
        """Return the sum; see `BucketExchange`."""
        return self.begin(gradient, transport, refuse=refuse)()

    def _begin_at_once(
        self, gradient: Tensor, transport: Transport, *, refuse: bool
    ) -> Callable[[], Reduced]:
        refuse, elements = refuse or not all_finite(gradient), gradient.numel()
        payload = encode_refusal(elements) if refuse else encode_all(gradient, self._value_dtype)
        arriving = begin_allgather(transport, payload)
        rejected = None if refuse else gradient - sent_values(gradient, self._value_dtype)

        def finish() -> Reduced:
            with phase("all-gather"):
                every = [decode(message, elements) for message in arriving()]
            if any(each.refused for each in every):
                return refused_bucket(elements)
            total = torch.zeros(elements, dtype=torch.float32, device="cpu")
            for each in every:
                total += each.values
            return Reduced(total, rejected) if all_finite(total) else refused_bucket(elements)

        return finish

    def _around_the_ring(self, gradient: Tensor, transport: Transport, *, refuse: bool) -> Reduced:
        """Return the sum, each block added up in the order in which it travels."""
        gradient = gradient.detach().cpu()
        if self._value_dtype == "float32" and isinstance(transport, AllReducing):
            return _reduced(partial(transport.allreduce, _given(gradient, refuse=refuse)))
        refuse = refuse or not all_finite(gradient)
        elements = gradient.numel()
        bounds = equal_bounds(elements, transport.size)
        rejected = None if self._value_dtype == "float32" else torch.zeros_like(gradient)

        def packed(number: int, values: Tensor | None) -> Tensor:
            start, stop = bounds[number : number + 2]
            if values is None or not all_finite(values):
                return encode_refusal(stop - start)
            if rejected is not None:
                rejected[start:stop] = values - sent_values(values, self._value_dtype)
            return encode_all(values, self._value_dtype)

        def own(number: int) -> Tensor | None:
            return None if refuse else gradient[bounds[number] : bounds[number + 1]]

        def added(number: int, received: Tensor) -> Tensor:
            block, mine = decode(received, bounds[number + 1] - bounds[number]), own(number)
            return packed(number, None if block.refused or mine is None else block.values.add_(mine))

        block, message = reduce_scatter(transport, packed(transport.rank, own(transport.rank)), added)
        total = torch.empty(elements, dtype=torch.float32, device="cpu")
        for number, each in enumerate(allgather_blocks(transport, block, message)):
            start, stop = bounds[number : number + 2]
            decoded = decode(each, stop - start)
            if decoded.refused:
                return refused_bucket(elements)
            total[start:stop] = decoded.values
        return Reduced(total, rejected)


def _given(gradient: Tensor, *, refuse: bool) -> Tensor:
    # NaN is what a refusal looks like in a sum: every rank gets it.
    refuse = refuse or not all_finite(gradient)
    return torch.full_like(gradient, torch.nan) if refuse else gradient


def _reduced(finish: Callable[[], Tensor]) -> Reduced:
    with phase("all-reduce"):
        total = finish()
    return Reduced(total) if all_finite(total) else refused_bucket(total.numel())
