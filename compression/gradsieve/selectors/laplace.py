"""Laplace threshold: about k entries, by estimating where to cut (method E)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from gradsieve.accumulated import Accumulated, Candidates
from gradsieve.density import accepted_counts, entries_to_keep
from gradsieve.kernels import as_accumulated
from gradsieve.kernels.magnitude import TOP, bits_of
from gradsieve.selection import Selection
from gradsieve.selectors.lowering import at_least

_EIGHTH_OCTAVE = 1 << 20  # pattern distance of a factor of about 1.1
_QUARTER_OCTAVE = 1 << 21  # of about 1.2: seen in training, the next threshold is hardly ever lower


@dataclass(frozen=True, slots=True)
class LaplaceSelector:
    """Keeps ``band[0] * k`` to ``band[1] * k`` entries, k = ceil(density * N), all those that reach one
    threshold.

    If fewer entries than ``band[0] * k`` are not zero, it keeps those.
    """

    band: tuple[float, float]

    def select(
        self, accumulated: Accumulated | Tensor, density: float, previous_threshold: float | None
    ) -> Selection:
        """See :class:`gradsieve.selection.Selector`. A ``previous_threshold`` that the band accepts is kept.

        1. Guess the threshold: the last step's, ``previous_threshold``, else the Laplace estimate
           mean|a| * ln(N / k).
        2. List what reaches it. If the band accepts that number, keep these: usually the only pass over N.
        3. If they are too few, list what reaches a quarter of an octave less; less still, by steps that
           double, until they are enough or all the non-zeros. This is the lower end of the method's bracket
           [0, max|a|], reached from above **(r)**. Keep all of them if the band allows.
        4. Else bisect, counting listed entries only, until between ``fewest`` and ``most`` are left.
        5. Ties may make the band unreachable: more than ``most`` reach a pattern and fewer than ``fewest``
           the next. Then keep exactly k, of the tied ones those with the lowest indices.

        Zeros are never selected.
        """
        source = as_accumulated(accumulated)
        count = entries_to_keep(density, source.elements)
        fewest, most = accepted_counts(count, source.elements, self.band)
        guess = max(_estimate(source, count) if not previous_threshold else bits_of(previous_threshold), 1)
        compacted = source.reaching(guess, margin=_QUARTER_OCTAVE, likely=True)
        if fewest <= compacted.count <= most:
            return compacted.select(guess)
        lower = guess
        if compacted.count < fewest:
            compacted = at_least(source, fewest, max(guess - _QUARTER_OCTAVE, 1), floor=1)
            lower = compacted.lowest()
            if compacted.count <= most:
                return compacted.select(lower)
        threshold = _bisect(compacted, lower, guess, fewest, most)
        at_most = count if compacted.count_reaching(threshold) > most else None
        return compacted.select(threshold, at_most)


def _estimate(source: Accumulated, count: int) -> int:
    """Return the pattern of mean|a| * ln(N / k), the most likely threshold (method E, step 1)."""
    if count == 0:
        return 0
    return bits_of(source.mean_magnitude() * math.log(source.elements / count))


def _bisect(candidates: Candidates, lower: int, guess: int, fewest: int, most: int) -> int:
    """Return a pattern that the band accepts, or the highest that too many candidates reach.

    More than ``most`` candidates reach ``lower``; nothing reaches TOP. Until a probe has found a pattern too
    high, probes go up from ``guess`` by strides that double.
    """
    upper, probe, stride = TOP, guess, _EIGHTH_OCTAVE
    if probe == lower:
        probe = lower + stride
    while upper - lower > 1:
        if not lower < probe < upper:
            probe = (lower + upper) // 2
        reached = candidates.count_reaching(probe)
        if fewest <= reached <= most:
            return probe
        if reached > most:
            lower, probe = probe, probe + stride if upper == TOP else 0
            stride *= 2
        else:
            upper, probe = probe, 0
    return lower
