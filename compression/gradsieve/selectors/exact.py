"""Exact top-k: the reference that the others approximate."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gradsieve.density import entries_to_keep
from gradsieve.kernels import reference
from gradsieve.selection import Selection


@dataclass(frozen=True, slots=True)
class TopKSelector:
    """Keeps exactly k = ceil(density * N) entries of largest magnitude."""

    def select(self, accumulated: Tensor, density: float, warm: float | None) -> Selection:
        """See :class:`gradsieve.selection.Selector`. ``warm`` only saves time; the answer does not depend on
        it.
        """
        return reference.top_k(accumulated, entries_to_keep(density, accumulated.numel()), warm)
