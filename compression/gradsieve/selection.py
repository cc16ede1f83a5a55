"""What a selector decides, and what every selector promises.

Shapes: ``a_N`` is a flat tensor of N elements, ``K`` the number of selected entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from gradsieve.accumulated import Accumulated


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The entries of one flat tensor that are worth sending.

    indices: int64 [K], flat positions, strictly increasing, on the tensor's device.
    values: fp32 [K], the tensor's values there; a copy, never a view.
    threshold: smallest magnitude that the rule let pass (0.0 when nothing did); hand it back as
        ``previous_threshold`` in the next step.
    """

    indices: Tensor
    values: Tensor
    threshold: float


class Selector(Protocol):
    """Chooses entries by magnitude; pure, so one instance may serve many tensors."""

    def select(
        self, accumulated: Accumulated | Tensor, density: float, previous_threshold: float | None
    ) -> Selection:
        """Return what to send of ``accumulated`` at ``density``; a tensor must be fp32 [N], flat, contiguous.

        Neither is mutated, but the accumulated gradient may be added up by being asked.

        ``previous_threshold`` is the threshold of this tensor's last selection, None for the first. It may
        save time, and for the Laplace rule it is part of the rule; a wrong one is never an error.

        Magnitudes are ordered by their bit pattern, in which infinity and NaN come above all finite numbers.
        Hence a law that callers rely on: **if ``accumulated`` holds a non-finite element, so do the values**.
        Looking at K values is therefore enough to find one, and saves a pass over N.
        """
        ...
