"""Some entries of a flat gradient, and what exchanges do with them: cut, add, keep the largest."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradsieve.kernels import add_entries
from gradsieve.kernels.magnitude import all_finite, largest_magnitude
from gradsieve.selection import Selection


@dataclass(frozen=True, slots=True, eq=False)
class SparseGradient:
    """K entries of a tensor of N elements; the others are zero.

    elements: N. indices: int64 [K], strictly increasing within [0, N). values: fp32 [K], on the same device.
    """

    elements: int
    indices: Tensor
    values: Tensor

    @classmethod
    def of(cls, selection: Selection, elements: int) -> SparseGradient:
        """Return what was selected of a tensor; memory is shared."""
        return cls(elements, selection.indices, selection.values)

    @classmethod
    def nothing(cls, elements: int, device: torch.device | str = "cpu") -> SparseGradient:
        """Return no entry of a tensor."""
        indices = torch.empty(0, dtype=torch.int64, device=device)
        return cls(elements, indices, torch.empty(0, dtype=torch.float32, device=device))

    @classmethod
    def joined(cls, blocks: Iterable[tuple[int, SparseGradient]], elements: int) -> SparseGradient:
        """Return the entries of blocks of a tensor, each given with its first position, in their order.

        Blocks must not overlap, and come by increasing position.
        """
        placed = list(blocks)
        if not placed:
            return cls.nothing(elements)
        indices = torch.cat([block.indices + start for start, block in placed])
        return cls(elements, indices, torch.cat([block.values for _, block in placed]))

    @property
    def count(self) -> int:
        """K."""
        return self.values.numel()

    @property
    def finite(self) -> bool:
        """Whether no value is NaN or infinity."""
        return all_finite(self.values)

    @property
    def largest(self) -> float:
        """The largest magnitude among the values, on the CPU; 0 if there are none."""
        return largest_magnitude(self.values)

    def selection(self) -> Selection:
        """Return the entries as the codec takes them; memory is shared."""
        return Selection(self.indices, self.values, 0.0)

    def to(self, device: torch.device | str) -> SparseGradient:
        """Return it on a device; memory is shared if it is there."""
        return SparseGradient(self.elements, self.indices.to(device), self.values.to(device))

    def cpu(self) -> SparseGradient:
        """Return it on the CPU; memory is shared if it is there."""
        return self.to("cpu")

    def block(self, start: int, stop: int) -> SparseGradient:
        """Return the entries with ``start <= index < stop``, as a tensor of ``stop - start`` elements."""
        ends = torch.tensor([start, stop], device=self.indices.device)
        first, last = torch.searchsorted(self.indices, ends).tolist()
        return SparseGradient(stop - start, self.indices[first:last] - start, self.values[first:last])

    def split(self, sizes: Sequence[int]) -> list[SparseGradient]:
        """Return the entries of consecutive tensors of so many elements each."""
        if not self.count:
            return [SparseGradient(size, self.indices, self.values) for size in sizes]
        starts = list(itertools.accumulate(sizes, initial=0))
        bounds = torch.searchsorted(self.indices, torch.tensor(starts, device=self.indices.device)).tolist()
        return [
            SparseGradient(size, self.indices[first:last] - start, self.values[first:last])
            for size, start, first, last in zip(sizes, starts, bounds, bounds[1:], strict=False)
        ]

    def add_into(self, total: Tensor, alpha: float = 1.0) -> None:
        """Add ``alpha * values`` to ``total`` (fp32 [N], any device) in place."""
        add_entries(total, self.indices.to(total.device), self.values.to(total.device), alpha)

    def plus(self, other: SparseGradient) -> SparseGradient:
        """Return the sum of two gradients of one tensor. Both orders give the same bits."""
        both = torch.cat([self.indices, other.indices])
        indices, inverse = torch.unique(both, sorted=True, return_inverse=True)
        values = torch.zeros(indices.numel(), dtype=torch.float32, device=self.values.device)
        values[inverse[: self.count]] = self.values
        values[inverse[self.count :]] += other.values
        return SparseGradient(self.elements, indices, values)

    def with_values(self, values: Tensor) -> SparseGradient:
        """Return the same entries with other values (fp32 [K])."""
        return SparseGradient(self.elements, self.indices, values)

    def without_zeros(self) -> SparseGradient:
        """Return the entries that are not zero."""
        return self._where(self.values != 0)

    def keep_largest(self, count: int) -> tuple[SparseGradient, SparseGradient]:
        """Return the ``count`` entries of the largest magnitude, ties by the lowest index, and the others."""
        if count >= self.count:
            return self, SparseGradient.nothing(self.elements, self.indices.device)
        order = torch.sort(self.values.abs(), descending=True, stable=True).indices
        kept = torch.zeros(self.count, dtype=torch.bool, device=self.indices.device)
        kept[order[:count]] = True
        return self._where(kept), self._where(~kept)

    def dense(self) -> Tensor:
        """Return the whole tensor (fp32 [N])."""
        total = torch.zeros(self.elements, dtype=torch.float32, device=self.values.device)
        total[self.indices] = self.values
        return total

    def _where(self, chosen: Tensor) -> SparseGradient:
        return SparseGradient(self.elements, self.indices[chosen], self.values[chosen])
