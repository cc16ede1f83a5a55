"""A threshold that every layer steers by itself (method A, steps 2 and 3)."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from torch import Tensor

from gradsieve.accumulated import Accumulated
from gradsieve.density import entries_to_keep
from gradsieve.kernels import as_accumulated
from gradsieve.selection import Selection
from gradsieve.selectors.exact import TopKSelector
from gradsieve.selectors.laplace import LaplaceSelector

_LEAST, _MOST = 0.5, 2.0  # of one adaptation of the threshold


@dataclass(frozen=True, slots=True)
class LayeredSelector:
    """Keeps all that reach the layer's threshold, and moves the threshold towards k = ceil(density * N).

    1. Without a threshold (``previous_threshold`` is None or 0) keep exactly the k largest: the anchor.
       Found near method E's threshold, so that not all N elements have to be ordered.
    2. Else keep M = all magnitudes that reach ``previous_threshold``.
    3. If their number is outside ``band`` (multiples of k), correct the threshold at once by method E's
       bisection. The rule of step 4 alone was seen to leave [0.8, 1.25] in 7 to 16 % of selections, and to
       select nothing at times **(r)**.
    4. Hand back as next threshold: threshold * clip((kept / k)^(1/2), 1/2, 2).

    Zeros are never sent. So a selection is empty only if all is zero, and outside the band only if there are
    too few non-zeros: then it is those.
    """

    band: tuple[float, float]

    def select(
        self, accumulated: Accumulated | Tensor, density: float, previous_threshold: float | None
    ) -> Selection:
        """See :class:`gradsieve.selection.Selector`. ``previous_threshold`` is part of the rule: None
        re-anchors.
        """
        source = as_accumulated(accumulated)
        # What method E does with a threshold that the band accepts is step 2, with any other step 3.
        selection = LaplaceSelector(self.band).select(source, density, previous_threshold or None)
        if not previous_threshold and selection.threshold > 0:
            exact = TopKSelector().select(source, density, selection.threshold)
            selection = exact if exact.threshold > 0 else selection
        threshold = _next_threshold(selection, entries_to_keep(density, source.elements))
        return dataclasses.replace(selection, threshold=threshold)


def _next_threshold(selection: Selection, count: int) -> float:
    ratio = math.sqrt(max(selection.indices.numel(), 1) / max(count, 1))
    return selection.threshold * min(max(ratio, _LEAST), _MOST)
