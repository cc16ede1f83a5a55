"""Densities and counts: which values are allowed, and how one becomes the other.

Densities are decimals that people write (0.07), counts are integers. ``0.07 * 100`` is 7.000000000000001 in
binary floating point and would be rounded up to 8, so the arithmetic here is done on the decimal as written.
"""

from __future__ import annotations

import math
import numbers
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeGuard


@lru_cache(maxsize=4096)
def scaled(factor: float, number: int) -> Fraction:
    """Return ``factor * number`` exactly, ``factor`` being read as its shortest decimal form."""
    return Fraction(repr(float(factor))) * number


@lru_cache(maxsize=4096)
def entries_to_keep(density: float, elements: int) -> int:
    """Return k = ceil(density * elements): at least 1 for a tensor that has elements, 0 for one that has
    none.
    """
    return min(elements, math.ceil(scaled(density, elements)))


def entries_per_group(density: float, group_elements: int) -> int:
    """Return k = max(1, floor(density * group_elements)), 0 for an empty group (method C, step 1).

    That even a full group gives at least one entry is **(r)**.
    """
    return min(group_elements, max(1, math.floor(scaled(density, group_elements))))


@lru_cache(maxsize=4096)
def accepted_counts(count: int, elements: int, band: tuple[float, float]) -> tuple[int, int]:
    """Return the fewest and the most entries that ``band`` (multiples of ``count``) accepts.

    If ``count`` is everything, nothing less is accepted: density 1 promises to equal dense training.
    """
    if count == elements:
        return count, count
    return math.ceil(scaled(band[0], count)), min(math.floor(scaled(band[1], count)), elements)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether ``value`` is a number; a bool, though an int to Python, is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_fraction(value: object) -> bool:
    """Return whether ``value`` is a number in (0, 1]."""
    return is_number(value) and 0 < value <= 1


def plain_count(value: Any) -> Any:
    """Return Python's integer for one of another kind, such as NumPy's; anything else as it is."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    return value


def is_count(value: object, lowest: int) -> bool:
    """Return whether ``value`` is an integer of at least ``lowest``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= lowest
