"""Matrices that travel as two thin factors (PowerSGD)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from gradsieve.errors import ConfigurationError
from gradsieve.kernels import low_rank
from gradsieve.kernels.magnitude import all_finite
from gradsieve_hvd.transport.base import Transport

from .dense import DenseExchange, FloatDtype, Reduced, refused_bucket
from .phases import phase

LARGEST_RANK = 8


class TensorSum(Protocol):
    """One tensor's sum over ranks, which is not written out yet."""

    def write(self, factor: float, total: Tensor, given: Tensor) -> bool:
        """Write the sum, times a factor, and what this rank rejects of what it has given; return whether the
        sum is finite, the same on every rank.

        Args:
            factor: of what is written.
            total: fp32 [N], overwritten with the former.
            given: fp32 [N], what this rank has given; overwritten with the latter.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class FactoredSum:
    """left: fp32 [R, n]. right: fp32 [R, m]. Both on the CPU; the sum is the product of the former, turned
    round, and the latter. ranks: that it is of.
    """

    left: Tensor
    right: Tensor
    ranks: int

    def write(self, factor: float, total: Tensor, given: Tensor) -> bool:
        """See `TensorSum`."""
        left, right = self.left.numpy(), self.right.numpy()
        return low_rank.approximate(left, right, given.numpy(), self.ranks, factor, total.numpy())


@dataclass(frozen=True, slots=True, eq=False)
class WholeSum:
    """total: any shape. rejected: of this rank's part; None for nothing."""

    total: Tensor
    rejected: Tensor | None

    def write(self, factor: float, total: Tensor, given: Tensor) -> bool:
        """See `TensorSum`."""
        torch.mul(self.total.view(-1), factor, out=total)
        if self.rejected is None:
            given.zero_()
        else:
            given.copy_(self.rejected.view(-1))
        return all_finite(self.total)


class LowRankExchange:
    """PowerSGD: Vogels, Karimireddy, Jaggi, *PowerSGD*, NeurIPS 2019, algorithms 1 and 2.

    1. Each tensor of two or more dimensions is a matrix M [n, m]: its first dimension by all others. The
       other tensors, and those whose factors would not be smaller, travel as they are, along with step 2.
    2. P = M Q, with the Q of the last exchange (the warm start), at first random; P is summed over ranks.
    3. P is made orthonormal, by each rank to the same bits.
    4. Q = M^T P, summed over ranks.
    5. The total is P Q^T. Each rank rejects M - P Q^T / ranks: known only now, so that a residual can be
       committed only after the whole exchange. Both are written at once, where they are wanted.

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
        self._parts = list(_parts(shapes, rank))
        self._sizes = [part.rows * part.columns for part in self._parts]
        self._elements = sum(self._sizes)
        generator = torch.Generator().manual_seed(seed)
        self._first = [
            torch.randn(part.rank, part.columns, generator=generator, dtype=torch.float32)
            for part in self._parts
            if part.rank
        ]
        self._factors = list(self._first)
        self._dense = DenseExchange(value_dtype)

    def exchange(self, gradient: Tensor, transport: Transport, *, refuse: bool = False) -> Reduced:
        """Return the sum, of low rank, and what it leaves of this rank's bucket; see `BucketExchange`.

        Raises:
            ConfigurationError: the bucket has another size than its tensors together.
        """
        if gradient.numel() != self._elements:
            raise ConfigurationError(
                f"lowrank: the bucket has {gradient.numel()} elements, its shapes have {self._elements}"
            )
        rejected = gradient.detach().to("cpu", copy=True)
        total = torch.empty_like(rejected)
        given = rejected.split(self._sizes)
        before = self._factors
        sums = self.exchange_tensors(given, transport, refuse=refuse)
        if sums is None:
            return refused_bucket(self._elements)
        places = zip(sums, total.split(self._sizes), given, strict=True)
        finite = [each.write(1.0, part, own) for each, part, own in places]
        if not all(finite):
            self._factors = before
            return refused_bucket(self._elements)
        return Reduced(total, rejected)

    def exchange_tensors(
        self, given: Sequence[Tensor], transport: Transport, *, refuse: bool = False
    ) -> list[TensorSum] | None:
        """Return each tensor's sum, which is yet to be written out; None if a rank refused.

        given: fp32 [N] each, in the order of the shapes, contiguous, on the CPU; not mutated.

        Raises:
            ExchangeError, PayloadError: see `BucketExchange.exchange`.
        """
        # Nobody looks whether it is finite: P and the others, which are summed, are not if it is not.
        matrices = [each.view(part.rows, part.columns) for part, each in self._of_kind(given, matrices=True)]
        lefts = [factor @ matrix.T for factor, matrix in zip(self._factors, matrices, strict=True)]
        pieces = [*lefts, *(each for _, each in self._of_kind(given, matrices=False))]
        summed = self._summed("factor P", pieces, transport, refuse)
        if summed is None:
            return None
        lefts, others = [each.total for each in summed[: len(lefts)]], iter(summed[len(lefts) :])
        for left in lefts:
            low_rank.orthogonalise(left.numpy())
        rights = [left @ matrix for left, matrix in zip(lefts, matrices, strict=True)]
        summed = self._summed("factor Q", rights, transport, refuse)
        if summed is None:
            return None
        rights = [each.total for each in summed]
        self._factors = [
            torch.where(right.any(1, keepdim=True), right, first)
            for right, first in zip(rights, self._first, strict=True)
        ]
        products = iter(FactoredSum(*both, transport.size) for both in zip(lefts, rights, strict=True))
        return [next(products) if part.rank else next(others) for part in self._parts]

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

    def _of_kind(self, given: Sequence[Tensor], *, matrices: bool) -> list[tuple[_Part, Tensor]]:
        pairs = zip(self._parts, given, strict=True)
        return [(part, each) for part, each in pairs if bool(part.rank) == matrices]

    def _summed(
        self, name: str, pieces: Sequence[Tensor], transport: Transport, refuse: bool
    ) -> list[WholeSum] | None:
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
        return [WholeSum(*both) for both in zip(sums, rejected, strict=True)]


@dataclass(frozen=True)
class _Part:
    """A tensor of the bucket: a matrix of rows and columns; rank 0 if it travels as it is."""

    rows: int
    columns: int
    rank: int


def _parts(shapes: Sequence[Sequence[int]], rank: int) -> Iterator[_Part]:
    for shape in shapes:
        rows = shape[0] if len(shape) > 1 else 1
        columns = math.prod(shape) // rows if rows else 0
        factor = factor_shape(shape, rank)
        yield _Part(rows, columns, factor[0] if factor else 0)


def factor_shape(shape: Sequence[int], rank: int) -> tuple[int, int] | None:
    """Return the shape of the factor Q of a tensor of a shape; None if it travels as it is."""
    if len(shape) < 2 or not math.prod(shape):
        return None
    rows, columns = shape[0], math.prod(shape[1:])
    kept = min(rank, rows, columns)
    return (kept, columns) if kept * (rows + columns) < rows * columns else None
