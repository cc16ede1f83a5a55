"""A cut that enough elements reach."""

from __future__ import annotations

from gradsieve.accumulated import Accumulated, Candidates

_HALF_OCTAVE = 1 << 22  # pattern distance of a factor of about 1.4


def at_least(source: Accumulated, count: int, magnitude_bits: int, floor: int) -> Candidates:
    """Return what reaches ``magnitude_bits``, or so much less (not below ``floor``) that ``count`` do.

    Steps double, so that a pattern that is far off costs few passes.
    """
    candidates, step = source.reaching(max(magnitude_bits, floor), margin=_HALF_OCTAVE), _HALF_OCTAVE
    while candidates.count < count and magnitude_bits > floor:
        magnitude_bits, step = max(magnitude_bits - step, floor), 2 * step
        candidates = source.reaching(magnitude_bits)
    return candidates
