"""Laplace threshold: about k entries, by estimating where to cut (method E)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from gradsieve.density import entries_to_keep, scaled
from gradsieve.kernels import reference
from gradsieve.selection import Selection


@dataclass(frozen=True, slots=True)
class LaplaceSelector:
    """Keeps ``band[0] * k`` to ``band[1] * k`` entries, k = ceil(density * N), all those that reach one
    threshold.

    If fewer entries than ``band[0] * k`` are not zero, it keeps those.
    """

    band: tuple[float, float]

    def select(self, accumulated: Tensor, density: float, warm: float | None) -> Selection:
        """See :class:`gradsieve.selection.Selector`. A ``warm`` threshold that the band accepts is kept."""
        count = entries_to_keep(density, accumulated.numel())
        fewest, most = self._accepted(count, accumulated.numel())
        return reference.laplace_top_k(accumulated, count, fewest, most, warm)

    def _accepted(self, count: int, elements: int) -> tuple[int, int]:
        if count == elements:
            return (
                count,
                count,
            )  # density 1 promises to equal dense training, so nothing but zeros may stay behind
        return math.ceil(scaled(self.band[0], count)), min(math.floor(scaled(self.band[1], count)), elements)
