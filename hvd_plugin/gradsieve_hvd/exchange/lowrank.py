"""Matrices that travel as two thin factors (PowerSGD)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradsieve.errors import ConfigurationError
from gradsieve.kernels import low_rank
from gradsieve_hvd.transport.base import Transport

from .dense import DenseExchange, FloatDtype, Reduced, refused_bucket
from .phases import phase

LARGEST_RANK = 8

_Sum = tuple[Tensor, Tensor | None]


class LowRankExchange:
    """PowerSGD: Vogels, Karimireddy, Jaggi, *PowerSGD*, NeurIPS 2019, algorithms 1 and 2.

    1. Each tensor of two or more dimensions is a matrix M [n, m]: its first dimension by all others. The
       other tensors, and those whose factors would not be smaller, travel as they are, along with step 2.
    2. P = M Q, with the Q of the last exchange (the warm start), at first random; P is summed over ranks.
    3. P is made orthonormal, by each rank to the same bits.
    4. Q = M^T P, summed over ranks.
    5. The total is P Q^T. Each rank rejects M - P Q^T / ranks: known only now, so that a residual can be
       committed only after the whole exchange.

    The paper averages where this sums; totals are ranks times its mean. A column of P that depends on those
    before it is left out, and begins at random again **(r)**: where a gradient was zero for a while, the warm
    start would otherwise keep it zero.

    Factors may travel in 16 bits, half the bytes **(r)**: P rounded is just another basis, and what rounding
    takes from Q is missing from the total, so that step 5 rejects it. What it takes from tensors that travel
    as they are is rejected likewise.

    Take the rank up if the loss lags behind dense training, down if the network is slower still: bytes grow
    with it, and so does the time of steps 2 to 5.

    Args:
        shapes: of the tensors that make up the bucket, in their order.
        rank: columns of the factors, 1 to 8.
        seed: of the first Q. Ranks may begin with different ones, or one of them later than the others:
            they share Q from the first exchange on.
        value_dtype: number format on the wire.

    Raises:
        ConfigurationError: the rank is out of range.
    """

    def __init__(
        self,
        shapes: Sequence[Sequence[int]],
        rank: int = 4,
        seed: int = 0,
        value_dtype: FloatDtype = "float32",
    ) -> None:
        if not 1 <= rank <= LARGEST_RANK:
            raise ConfigurationError(f"lowrank: rank is {rank}, expected 1 to {LARGEST_RANK}")
        parts = list(_parts(shapes, rank))
        self._elements = parts[-1].stop if parts else 0
        self._matrices = [part for part in parts if part.rank]
        self._as_they_are = [part for part in parts if not part.rank]
        generator = torch.Generator().manual_seed(seed)
        self._first = [
            torch.randn(part.rank, part.columns, generator=generator, dtype=torch.float32)
            for part in self._matrices
        ]
        self._factors = list(self._first)
        self._dense = DenseExchange(value_dtype)

    def exchange(self, gradient: Tensor, transport: Transport, *, refuse: bool = False) -> Reduced:
        """Return the sum, of low rank, and what it leaves of this rank's bucket; see `BucketExchange`.

        Raises:
            ConfigurationError: the bucket has another size than its tensors together.
        """
        gradient = gradient.detach().cpu()
        if gradient.numel() != self._elements:
            raise ConfigurationError(
                f"lowrank: the bucket has {gradient.numel()} elements, its shapes have {self._elements}"
            )
        # Nobody looks whether it is finite: P and the others, which are summed, are not if it is not.
        matrices = [part.of(gradient).view(part.rows, part.columns) for part in self._matrices]
        lefts = [factor @ matrix.T for factor, matrix in zip(self._factors, matrices, strict=True)]
        pieces = [*lefts, *(part.of(gradient) for part in self._as_they_are)]
        summed = self._summed("factor P", pieces, transport, refuse)
        if summed is None:
            return refused_bucket(self._elements)
        lefts, others = [total for total, _ in summed[: len(lefts)]], summed[len(lefts) :]
        for left in lefts:
            low_rank.orthogonalise(left.numpy())
        rights = [left @ matrix for left, matrix in zip(lefts, matrices, strict=True)]
        summed = self._summed("factor Q", rights, transport, refuse)
        if summed is None:
            return refused_bucket(self._elements)
        summed_rights = [total for total, _ in summed]
        reduced = self._approximated(gradient, lefts, summed_rights, others, transport.size)
        if reduced.refused:
            return reduced
        self._factors = [
            torch.where(right.any(1, keepdim=True), right, first)
            for right, first in zip(summed_rights, self._first, strict=True)
        ]
        return reduced

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"factors": [fp32 [R, m] ...]}``, copies: the Q of each matrix."""
        return {"factors": [factor.clone() for factor in self._factors]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a copy of a state.

        Raises:
            ConfigurationError: it is not of such a bucket, or of another rank; nothing was changed.
        """
        factors = state.get("factors")
        wanted = [list(factor.shape) for factor in self._factors]
        found = [list(each.shape) if isinstance(each, Tensor) else None for each in factors or ()]
        if found != wanted:
            raise ConfigurationError(f"state of lowrank: field 'factors': found {found}, expected {wanted}")
        self._factors = [factor.to("cpu", torch.float32, copy=True) for factor in factors or ()]

    def _approximated(
        self,
        gradient: Tensor,
        lefts: Sequence[Tensor],
        rights: Sequence[Tensor],
        others: Sequence[_Sum],
        ranks: int,
    ) -> Reduced:
        total, rejected = torch.empty_like(gradient), torch.empty_like(gradient)
        for part, left, right in zip(self._matrices, lefts, rights, strict=True):
            given, product, missing = (part.of(each).numpy() for each in (gradient, total, rejected))
            if not low_rank.approximate(left.numpy(), right.numpy(), given, ranks, product, missing):
                return refused_bucket(self._elements)
        for part, (other, rounded_away) in zip(self._as_they_are, others, strict=True):
            part.of(total).copy_(other)
            if rounded_away is None:
                part.of(rejected).zero_()
            else:
                part.of(rejected).copy_(rounded_away)
        return Reduced(total, rejected)

    def _summed(
        self, name: str, pieces: Sequence[Tensor], transport: Transport, refuse: bool
    ) -> list[_Sum] | None:
        """Return each piece's sum over ranks and what this rank rejects of it, None if a rank refused."""
        if not pieces:
            return []
        with phase(name):
            reduced = self._dense.exchange(
                torch.cat([piece.reshape(-1) for piece in pieces]), transport, refuse=refuse
            )
        if reduced.refused:
            return None
        sizes = [piece.numel() for piece in pieces]
        totals = reduced.total.split(sizes)
        rejected: Sequence[Tensor | None] = [None] * len(sizes)
        if reduced.rejected is not None:
            rejected = reduced.rejected.split(sizes)
        sums = (total.view(piece.shape) for total, piece in zip(totals, pieces, strict=True))
        return list(zip(sums, rejected, strict=True))


@dataclass(frozen=True)
class _Part:
    """A tensor in the bucket, [start, stop): a matrix of rows and columns; rank 0 if it travels as it is."""

    start: int
    stop: int
    rows: int
    columns: int
    rank: int

    def of(self, bucket: Tensor) -> Tensor:
        return bucket[self.start : self.stop]


def _parts(shapes: Sequence[Sequence[int]], rank: int) -> Iterator[_Part]:
    elements = [math.prod(shape) for shape in shapes]
    for shape, count, stop in zip(shapes, elements, itertools.accumulate(elements), strict=True):
        rows = shape[0] if len(shape) > 1 else 1
        columns = count // rows if rows else 0
        factor = factor_shape(shape, rank)
        yield _Part(stop - count, stop, rows, columns, factor[0] if factor else 0)


def factor_shape(shape: Sequence[int], rank: int) -> tuple[int, int] | None:
    """Return the shape of the factor Q of a tensor of a shape; None if it travels as it is."""
    if len(shape) < 2 or not math.prod(shape):
        return None
    rows, columns = shape[0], math.prod(shape[1:])
    kept = min(rank, rows, columns)
    return (kept, columns) if kept * (rows + columns) < rows * columns else None
