"""What every exchange promises, whatever path it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gradsieve.codec import Payload, ValueDtype, decode, encode_refusal, encode_rounded
from gradsieve.sparse_gradient import SparseGradient
from gradsieve_hvd.transport.base import Transport


@dataclass(frozen=True, slots=True, eq=False)
class Exchanged:
    """What came of an exchange.

    summands: of N elements each, on the CPU; the sum over all ranks is their sum in this order. The same bits
        on every rank.
    rejected: what this rank took away from the sum on the way, or rounding did; belongs into its residual.
    refused: whether a rank refused to take part. Then there are no summands, ``rejected`` is empty, and the
        step must be rolled back.

    Nothing is lost: the sum over all ranks of what they gave is ``total`` plus the sum of all ``rejected``,
    exactly where no sum of two fp32 numbers had to be rounded.
    """

    summands: tuple[SparseGradient, ...]
    rejected: SparseGradient
    refused: bool = False

    @property
    def total(self) -> Tensor:
        """The sum over all ranks, fp32 [N] on the CPU; made anew each time."""
        total = torch.zeros(self.rejected.elements, dtype=torch.float32, device="cpu")
        for summand in self.summands:
            summand.add_into(total)
        return total


class Exchange(Protocol):
    """Sums sparse gradients over the ranks of a transport. All ranks call it, with the same settings."""

    def exchange(
        self, gradient: SparseGradient, transport: Transport, most: int | None = None, *, refuse: bool = False
    ) -> Exchanged:
        """Return the sum of all ranks' gradients.

        Args:
            gradient: this rank's, on any device; not mutated. One that is not finite is refused.
            transport: to the other ranks.
            most: how many entries the total may have, for exchanges that select again; None for no bound.
            refuse: take part without a gradient, and have all ranks know that.

        Raises:
            ExchangeError: a rank did not take part in time.
            PayloadError: what another rank sent cannot be decoded.
        """
        ...


@runtime_checkable
class Beginning(Protocol):
    """An `Exchange` that can send all that it sends before it has heard of another rank."""

    def begin(
        self, gradient: SparseGradient, transport: Transport, most: int | None = None, *, refuse: bool = False
    ) -> Callable[[], Exchanged]:
        """Send, and return what waits for the others and sums; see `Exchange.exchange`."""
        ...


def begin_exchange(
    exchange: Exchange,
    gradient: SparseGradient,
    transport: Transport,
    most: int | None = None,
    *,
    refuse: bool = False,
) -> Callable[[], Exchanged]:
    """Do what an exchange can do without waiting, and return what does the rest; see `Exchange.exchange`."""
    if isinstance(exchange, Beginning):
        return exchange.begin(gradient, transport, most, refuse=refuse)
    return partial(exchange.exchange, gradient, transport, most, refuse=refuse)


class Coder:
    """Encodes blocks of a gradient, and notes what rounding takes away.

    Args:
        value_dtype: number format of values on the wire.
    """

    def __init__(self, value_dtype: ValueDtype) -> None:
        self._value_dtype = value_dtype

    def encode(self, block: SparseGradient) -> tuple[Tensor, SparseGradient]:
        """Return a block's payload, and what its receivers will not see of it."""
        payload, rounding = encode_rounded(block, self._value_dtype)
        return payload, rounding.without_zeros() if rounding.count else rounding


def refused_block(elements: int) -> Tensor:
    """Return the payload of a rank that refuses, for a block of ``elements``."""
    return encode_refusal(elements)


def read(message: Tensor, elements: int) -> SparseGradient | None:
    """Return the block of ``elements`` in a message, None for a refusal.

    Raises:
        PayloadError: it cannot be decoded.
    """
    payload: Payload = decode(message, elements)
    if payload.refused:
        return None
    indices = payload.indices
    if indices is not None:
        return SparseGradient(elements, indices, payload.values)
    return SparseGradient(elements, torch.arange(elements, device="cpu"), payload.values).without_zeros()


def refusal(elements: int) -> Exchanged:
    """Return what comes of an exchange in which a rank refused."""
    return Exchanged((), SparseGradient.nothing(elements), refused=True)
