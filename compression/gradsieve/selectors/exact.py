"""Exact top-k: the reference that the others approximate."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gradsieve.accumulated import Accumulated
from gradsieve.density import entries_to_keep
from gradsieve.kernels import as_accumulated
from gradsieve.kernels.magnitude import pattern_of
from gradsieve.selection import Selection
from gradsieve.selectors.lowering import at_least

_EIGHTH_OCTAVE = 1 << 20  # pattern distance of a factor of about 1.1


@dataclass(frozen=True, slots=True)
class TopKSelector:
    """Keeps exactly k = ceil(density * N) entries of largest magnitude, ties by lowest index."""

    def select(self, accumulated: Accumulated | Tensor, density: float, warm: float | None) -> Selection:
        """See :class:`gradsieve.selection.Selector`. ``warm`` saves time, the answer does not depend on it.

        1. List what reaches a cut that at least k magnitudes reach: a little below ``warm`` if given (this
           step's threshold is near the last one's), zero otherwise.
        2. Take the k-th largest of these as the threshold.
        3. Keep what is above it, and of what equals it the lowest indices.
        """
        source = as_accumulated(accumulated)
        count = entries_to_keep(density, source.elements)
        start = 0 if warm is None or count == source.elements else max(pattern_of(warm) - _EIGHTH_OCTAVE, 0)
        candidates = at_least(source, count, start, floor=0)
        threshold = candidates.nth_largest(count) if count else 0
        return candidates.select(threshold, at_most=count)
