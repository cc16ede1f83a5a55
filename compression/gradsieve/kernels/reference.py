"""The definition, in plain torch, for any device; the other kernels must give the same bits."""

from __future__ import annotations

import torch
from torch import Tensor

from gradsieve.kernels.magnitude import SIGN_OFF, fixed_point_mean, magnitude_of
from gradsieve.selection import Selection


class ReferenceCandidates:
    """See :class:`gradsieve.accumulated.Candidates`."""

    def __init__(self, indices: Tensor, values: Tensor) -> None:
        self._indices = indices
        self._values = values
        self._bits = values.view(torch.int32) & SIGN_OFF

    @property
    def count(self) -> int:
        """How many they are."""
        return self._indices.numel()

    def count_reaching(self, magnitude_bits: int) -> int:
        """Return how many of them reach ``magnitude_bits``."""
        return int(torch.count_nonzero(self._bits >= magnitude_bits))

    def lowest(self) -> int:
        """Return their smallest pattern, 0 if there are none."""
        return int(self._bits.min()) if self.count else 0

    def nth_largest(self, number: int) -> int:
        """Return the ``number``-th largest pattern."""
        return int(torch.kthvalue(self._bits, self.count - number + 1).values)

    def select(self, magnitude_bits: int, at_most: int | None = None) -> Selection:
        """Return those that reach ``magnitude_bits``, of those at it only the first if they are too many."""
        keep = self._bits >= magnitude_bits
        if at_most is not None:
            above = int(torch.count_nonzero(self._bits > magnitude_bits))
            tied = (self._bits == magnitude_bits).nonzero().flatten()
            keep[tied[at_most - above :]] = False
        return Selection(self._indices[keep], self._values[keep], magnitude_of(magnitude_bits))


class ReferenceSum:
    """See :class:`gradsieve.accumulated.Accumulated`: added up at once, looked at as often as asked."""

    def __init__(self, accumulated: Tensor) -> None:
        self._accumulated = accumulated
        self._bits = accumulated.view(torch.int32)

    @classmethod
    def of(cls, gradient: Tensor, scale: float, residual: Tensor, out: Tensor) -> ReferenceSum:
        """Return ``gradient * scale + residual``, made in ``out``; product and sum are rounded separately."""
        out.view(gradient.shape).copy_(gradient)
        return cls(out.mul_(scale).add_(residual))

    @property
    def elements(self) -> int:
        """N."""
        return self._accumulated.numel()

    def tensor(self) -> Tensor:
        """Return a itself."""
        return self._accumulated

    def reaching(
        self,
        magnitude_bits: int,
        margin: int = 0,  # noqa: ARG002 - hints are for those who can use them
        *,
        likely: bool = False,  # noqa: ARG002
    ) -> ReferenceCandidates:
        """Return the elements that reach ``magnitude_bits``."""
        indices = ((self._bits & SIGN_OFF) >= magnitude_bits).nonzero().flatten()
        return ReferenceCandidates(indices, self._accumulated[indices])

    def subtract_sent(self, selection: Selection) -> None:
        """Set the selected elements to 0."""
        self._accumulated.index_fill_(0, selection.indices, 0.0)

    def mean_magnitude(self) -> float:
        """Return mean |a|."""
        largest = int((self._bits & SIGN_OFF).max())
        return fixed_point_mean(
            largest,
            self.elements,
            lambda scale: int((self._accumulated.double().abs() * scale).long().sum()),
        )

    def group_top_k(self, group_size: int, per_group: int, in_last: int) -> Selection:
        """Return the ``per_group`` largest of every group: sort each by magnitude, equal ones by position."""
        whole = self.elements - self.elements % group_size
        parts = [
            _row_top_k(self._bits[:whole].view(-1, group_size), per_group),
            _row_top_k(self._bits[whole:].view(-1, max(self.elements - whole, 1)), in_last) + whole,
        ]
        indices = torch.cat(parts)
        values = self._accumulated[indices]
        lowest = ReferenceCandidates(indices, values).lowest()
        return Selection(indices, values, magnitude_of(lowest))


def _row_top_k(rows: Tensor, count: int) -> Tensor:
    """Return the flat places (int64 [R * count]) of each row's ``count`` largest of int32 [R, G]."""
    order = (rows & SIGN_OFF).sort(dim=1, descending=True, stable=True).indices
    columns = order[:, :count].sort(dim=1).values
    starts = torch.arange(rows.shape[0], device=rows.device).unsqueeze(1) * rows.shape[1]
    return (columns + starts).flatten()
