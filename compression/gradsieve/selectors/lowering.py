"""A cut that enough elements reach."""

from __future__ import annotations

from gradsieve.accumulated import Accumulated, Candidates

_HALF_OCTAVE = 1 << 22  # pattern distance of a factor of about 1.4


def at_least(source: Accumulated, count: int, pattern: int, floor: int) -> Candidates:
    """Return what reaches ``pattern``, or as much less (down to ``floor``) as it takes to have ``count``.

    Steps double, so that a pattern that is far off costs few passes.
    """
    candidates, step = source.reaching(max(pattern, floor), margin=_HALF_OCTAVE), _HALF_OCTAVE
    while candidates.count < count and pattern > floor:
        pattern, step = max(pattern - step, floor), 2 * step
        candidates = source.reaching(pattern)
    return candidates
