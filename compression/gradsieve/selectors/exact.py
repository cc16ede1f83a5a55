"""Exact top-k: the reference that the others approximate."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from gradsieve.accumulated import Accumulated
from gradsieve.density import entries_to_keep
from gradsieve.kernels import as_accumulated
from gradsieve.kernels.magnitude import bits_of
from gradsieve.selection import Selection
from gradsieve.selectors.lowering import at_least
from gradsieve.selectors.sampling import nth_largest_sampled

_EIGHTH_OCTAVE = 1 << 20  # pattern distance of a factor of about 1.1
_LEAST_SAMPLED = 1 << 13
_LEAST_PASSING = 64  # of the sample: fewer tell next to nothing about the tensor
_WORTH_SAMPLING = 8  # times the sample: smaller tensors are looked at as a whole


@dataclass(frozen=True, slots=True)
class TopKSelector:
    """Keeps exactly k = ceil(density * N) entries of largest magnitude, ties by lowest index."""

    def select(
        self, accumulated: Accumulated | Tensor, density: float, previous_threshold: float | None
    ) -> Selection:
        """See :class:`gradsieve.selection.Selector`. ``previous_threshold`` saves time, the answer does not
        depend on it.

        1. List what reaches a cut that at least k magnitudes reach: a little below ``previous_threshold`` if
           given (this step's threshold is near the last one's), else below the threshold of a sample, found
           twice as dense; zero for small tensors.
        2. Take the k-th largest of these as the threshold.
        3. Keep what is above it, and of what equals it the lowest indices.
        """
        source = as_accumulated(accumulated)
        count = entries_to_keep(density, source.elements)
        candidates = at_least(source, count, _cut(source, density, count, previous_threshold), floor=0)
        threshold = candidates.nth_largest(count) if count else 0
        return candidates.select(threshold, at_most=count)


def _cut(source: Accumulated, density: float, count: int, previous_threshold: float | None) -> int:
    """Return a pattern that probably a little more than ``count`` elements reach."""
    if count == source.elements:
        return 0
    if previous_threshold is not None:
        return max(bits_of(previous_threshold) - _EIGHTH_OCTAVE, 0)
    sampled = max(_LEAST_SAMPLED, math.ceil(_LEAST_PASSING / density))
    if sampled * _WORTH_SAMPLING > source.elements:
        return 0
    return nth_largest_sampled(source.tensor(), sampled, min(entries_to_keep(2 * density, sampled), sampled))
