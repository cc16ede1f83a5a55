"""Group top-k: the same number from every stretch of the tensor (method C, step 1)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gradsieve.accumulated import Accumulated
from gradsieve.density import entries_per_group
from gradsieve.kernels import as_accumulated
from gradsieve.selection import Selection


@dataclass(frozen=True, slots=True)
class GroupTopKSelector:
    """Keeps max(1, floor(density * len)) entries of each group of ``group_size`` consecutive elements.

    With groups of 1 024 and a density of 0.01 that is 10 of 1 024: 0.98 of what was asked for.

    The patent cuts the rank's whole flattened gradient into groups. Here every tensor is cut by itself
    **(r)**, since tensors come one by one: groups never reach across two of them, and every tensor has a last
    group of its own.
    """

    group_size: int

    def select(
        self,
        accumulated: Accumulated | Tensor,
        density: float,
        previous_threshold: float | None,  # noqa: ARG002 - groups have a threshold each
    ) -> Selection:
        """See :class:`gradsieve.selection.Selector`. ``previous_threshold`` is not used."""
        source = as_accumulated(accumulated)
        return source.group_top_k(
            self.group_size,
            per_group=entries_per_group(density, self.group_size),
            in_last=entries_per_group(density, source.elements % self.group_size),
        )
