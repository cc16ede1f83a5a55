"""Sampled top-k with hierarchical re-selection: the baseline of Deep Gradient Compression (section 3.1).

Nothing here is as fast as an estimated or a carried-over threshold; it is here to be compared with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from gradsieve.accumulated import Accumulated, Candidates
from gradsieve.density import accepted_counts, entries_to_keep
from gradsieve.kernels import as_accumulated
from gradsieve.kernels.magnitude import bits_of, magnitude_of
from gradsieve.selection import Selection
from gradsieve.selectors.exact import TopKSelector
from gradsieve.selectors.sampling import nth_largest_sampled

_LEAST_PASSING = 32  # of the sample above its threshold: fewer tell next to nothing about the tensor
_LOWERED = 0.8  # a threshold that lets too few pass
_TIMES_LOWERED = 10


@dataclass(frozen=True, slots=True)
class SampledSelector:
    """Keeps ``band[0] * k`` to ``band[1] * k`` entries, k = ceil(density * N), by the threshold of a sample.

    1. Take a sample of ``sample`` * N magnitudes, more if fewer than 32 of it would pass: one from each of as
       many equal stretches of the tensor, at a place that depends on ``seed`` and the stretch only. (The
       paper's sample is random, its code's alternative strided. This one is spread evenly, has no period that
       a weight's rows could share, and is the same in every run.)
    2. The threshold is the magnitude that a fraction ``density`` of the sample reaches.
    3. List what reaches it in the whole tensor. While that is less than ``band[0] * k``, lower the threshold
       to 0.8 of it, ten times at most; then to the smallest number above 0.
    4. If more than ``band[1] * k`` are listed, select again among them: exactly the k largest (ties by lowest
       index). DGC's published code keeps the first k by position when its own attempts end.
    """

    sample: float
    band: tuple[float, float]
    seed: int

    def select(
        self,
        accumulated: Accumulated | Tensor,
        density: float,
        previous_threshold: float | None,  # noqa: ARG002 - every sample has a threshold of its own
    ) -> Selection:
        """See :class:`gradsieve.selection.Selector`. ``previous_threshold`` is not used: every step
        samples again.
        """
        source = as_accumulated(accumulated)
        elements = source.elements
        count = entries_to_keep(density, elements)
        sampled = min(elements, math.ceil(max(self.sample * elements, _LEAST_PASSING / density)))
        if sampled == elements:
            return TopKSelector().select(source, density, None)
        fewest, most = accepted_counts(count, elements, self.band)
        passing = entries_to_keep(density, sampled)
        threshold = nth_largest_sampled(source.tensor(), sampled, passing, self.seed)
        threshold, compacted = _enough(source, threshold, fewest)
        if compacted.count <= most:
            return compacted.select(threshold)
        return compacted.select(compacted.nth_largest(count), at_most=count)


def _enough(source: Accumulated, threshold: int, fewest: int) -> tuple[int, Candidates]:
    """Return a threshold's pattern and what reaches it: at least ``fewest``, or all non-zeros."""
    threshold = max(threshold, 1)
    compacted = source.reaching(threshold)
    for attempt in range(_TIMES_LOWERED + 1):
        if compacted.count >= fewest or threshold == 1:
            break
        last = attempt == _TIMES_LOWERED
        threshold = 1 if last else max(bits_of(_LOWERED * magnitude_of(threshold)), 1)
        compacted = source.reaching(threshold)
    return threshold, compacted
