"""How many bytes a payload will take, before there is one: what the choice of a path is made by.

Positions are taken as spread evenly, and values as the largest of a Laplace distribution, which is what
gradients with a residual look like. Nothing is looked at but sizes: real payloads differ by some percent.
"""

from __future__ import annotations

import math
from functools import lru_cache

from gradsieve.codec import index_loops, rice, value_loops
from gradsieve.codec.checksum import CHECKSUM_BYTES
from gradsieve.codec.header import IndexCoding, ValueCoding
from gradsieve.codec.values import FIELDS, ValueDtype, coding_of, is_floating, raw_bytes

_HEADER_BYTES = 16  # 12 to 40; four numbers of two bytes
_EULER = 0.5772156649
_PARAMETER_BITS = 8


def estimated_bytes(elements: int, count: int, value_dtype: ValueDtype) -> int:
    """Return about how many bytes a payload of ``count`` of ``elements`` values takes.

    Raises ValueError if ``count`` is not within [0, elements].
    """
    if not 0 <= count <= elements:
        raise ValueError(f"count is {count}, expected 0 to {elements}, the number of elements")
    coding = coding_of(value_dtype)
    values = _values(coding, count, _selectivity(elements, count))
    body = values if count == elements else values + min(index_bytes(elements, count).values())
    if is_floating(coding):
        body = min(body, raw_bytes(coding, elements))
    return round(_HEADER_BYTES + body + CHECKSUM_BYTES)


def index_bytes(elements: int, count: int) -> dict[IndexCoding, float]:
    """Return about how many bytes each coding of positions takes, for ``count`` of ``elements``."""
    miss = 1 - count / elements if elements else 0.0  # gaps are geometric: P(gap >= g) = miss^g
    gap = rice_bits(1 / (1 - miss) - 1) if miss < 1 else 0.0
    escapes = miss**255 / (1 - miss**255) if miss < 1 else 0.0
    return {
        IndexCoding.DELTA: count * (1 + escapes),
        IndexCoding.GROUP16: 2.0 * (-(-elements // index_loops.GROUP) + count),
        IndexCoding.RICE: count * gap / 8,
        IndexCoding.BITMAP: elements / 8,
    }


def rice_bits(mean: float) -> float:
    """Return the bits of a Golomb-Rice code per number, geometric ones of this mean, the parameter's share
    with it.
    """
    ratio = mean / (1 + mean)
    shortest = min(p + 1 + ratio ** (1 << p) / (1 - ratio ** (1 << p)) for p in range(32))
    return shortest + _PARAMETER_BITS / rice.BLOCK


def _values(coding: ValueCoding, count: int, selectivity: float) -> float:
    """Return about how many bytes ``count`` values take, as they are or packed, whichever is less.

    selectivity: the smallest magnitude, in units of the mean magnitude of the whole tensor.
    """
    raw = raw_bytes(coding, count)
    exponent, mantissa = FIELDS[coding]
    if is_floating(coding):
        above = _binades_above(selectivity)
        quotient = min(more + above / (1 << more) for more in range(exponent))
        bits = mantissa + 2 + quotient + _PARAMETER_BITS / rice.BLOCK
        return min(raw, count * bits / 8)
    group = min(count, value_loops.GROUP)
    if group < 2:
        return raw
    # Above the smallest of a group magnitudes are exponential; the largest lies ln + 0.58 above it.
    levels = (1 << exponent) - 1
    unit = (math.log(group) + _EULER) / levels
    mean_level = sum(math.exp(-(level - 0.5) * unit) for level in range(1, levels + 1))
    scales = raw - count * (1 + exponent) / 8
    return min(raw, scales + count * rice_bits(2 * mean_level + 0.5) / 8)


def _selectivity(elements: int, count: int) -> float:
    return math.log(elements / count) + 1 / count if count else 1.0  # the smallest of n is 1 / n


@lru_cache(maxsize=1024)
def _binades_above(selectivity: float) -> float:
    """Return by how many binades a value lies above the smallest one's, t, on the average.

    It lies above j of them if it exceeds t 2^(u + j - 1), where u is even within [0, 1): t lies anywhere.
    """
    samples = 16
    return sum(
        math.exp(-selectivity * (2 ** ((sample + 0.5) / samples + binade) - 1)) / samples
        for sample in range(samples)
        for binade in range(32)
    )
