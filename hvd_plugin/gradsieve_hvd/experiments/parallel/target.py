"""When a training has reached its target. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

Curve = Sequence[tuple[float, float]]
"""Seconds and metric, in the order of time."""


def seconds_to_target(curve: Curve, until: float, *, rising: bool) -> float | None:
    """Return when a metric has first been at its target, linear between two points; None if it never was.

    rising: the target is reached from below, as that of an accuracy.
    """
    sign = 1.0 if rising else -1.0
    gaps = [(seconds, sign * (until - value)) for seconds, value in curve]  # what is missing
    if gaps and gaps[0][1] <= 0:
        return gaps[0][0]
    for (before, missing), (now, left) in pairwise(gaps):
        if left <= 0:
            return before + (now - before) * missing / (missing - left)
    return None
