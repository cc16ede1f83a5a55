"""The compiled loops of the number formats.

``float_bits``: the bits of fp32 numbers, uint32 [K]. ``codes``: the same numbers rounded to a format, uint32
[K]: from the top sign (1 bit), exponent or level, and mantissa. All of them may be done in place. A
group's loops run over slices, as in :mod:`gradsieve.kernels.numba_kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradsieve.codec.bits import Array
from gradsieve.kernels.jit import compiled

GROUP = 256  # values that share a scale: 0.25 bits each for the scale's eight bytes
_SIGN_OFF = np.uint32(0x7FFFFFFF)
_INFINITY = np.uint32(0x7F800000)
_ROUND = "void(uint32[::1], uint32[::1])"


@compiled("float32(uint32)", inline=True)
def _number(float_bits: Any) -> Any:
    return np.uint32(float_bits).view(np.float32)


@compiled("uint32(float32)", inline=True)
def _float_bits(number: Any) -> Any:
    return np.float32(number).view(np.uint32)


@compiled("boolean(uint32[::1], int64, int64)")
def all_finite(codes: Array, exponent: int, mantissa: int) -> bool:
    """Return whether none of the codes of a floating-point format is an infinity or NaN."""
    special = np.uint32((1 << exponent) - 1) << np.uint32(mantissa)
    found = np.uint32(0)
    for index in range(codes.size):
        found |= np.uint32((codes[index] & special) == special)
    return found == 0


@compiled(_ROUND)
def to_half(float_bits: Array, codes: Array) -> None:
    """Round to fp16: to nearest, ties to even, magnitudes beyond its range to its largest."""
    largest, normal = np.uint32(0x477FE000), np.uint32(0x38800000)  # 65 504 and 2**-14
    for index in range(float_bits.size):
        magnitude = min(float_bits[index] & _SIGN_OFF, largest)
        # Adding 0.5 shifts a denormal's last bit to fp32's: the addition rounds as fp16 would.
        small = _float_bits(_number(magnitude) + np.float32(0.5)) - _float_bits(np.float32(0.5))
        odd = magnitude >> np.uint32(13) & np.uint32(1)
        usual = np.uint32(magnitude - np.uint32(112 << 23) + np.uint32(0xFFF) + odd) >> np.uint32(13)
        sign = float_bits[index] >> np.uint32(16) & np.uint32(0x8000)
        codes[index] = sign | (small if magnitude < normal else min(usual, np.uint32(0x7BFF)))


@compiled(_ROUND)
def from_half(codes: Array, float_bits: Array) -> None:
    """Widen fp16, exactly: its bits, moved up, are a number that is too small by 2**112."""
    scale = np.float32(2.0**112)
    for index in range(codes.size):
        moved = np.uint32((codes[index] & np.uint32(0x7FFF)) << np.uint32(13))
        sign = (codes[index] & np.uint32(0x8000)) << np.uint32(16)
        float_bits[index] = _float_bits(_number(moved) * scale) | sign


@compiled(_ROUND)
def to_bfloat(float_bits: Array, codes: Array) -> None:
    """Round to bf16: to nearest, ties to even, magnitudes beyond its range to its largest."""
    for index in range(float_bits.size):
        magnitude = float_bits[index] & _SIGN_OFF
        odd = magnitude >> np.uint32(16) & np.uint32(1)
        rounded = min((magnitude + np.uint32(0x7FFF) + odd) >> np.uint32(16), np.uint32(0x7F7F))
        codes[index] = (float_bits[index] >> np.uint32(16) & np.uint32(0x8000)) | rounded


@compiled(_ROUND)
def from_bfloat(codes: Array, float_bits: Array) -> None:
    """Widen bf16, exactly."""
    for index in range(codes.size):
        float_bits[index] = codes[index] << np.uint32(16)


@compiled("void(uint32[::1], int64, uint32[::1], uint32[::1])")
def to_levels(float_bits: Array, level_bits: int, codes: Array, scales: Array) -> None:
    """Round magnitudes to the nearest of 2**level_bits, evenly spaced between the smallest and the largest of
    their group of GROUP; ``scales`` (patterns, two per group) tells these two.
    """
    top = np.float64((1 << level_bits) - 1)
    for group in range(scales.size // 2):
        part = slice(group * GROUP, min((group + 1) * GROUP, float_bits.size))
        members, levels = float_bits[part], codes[part]
        lowest, highest = _INFINITY, np.uint32(0)
        for index in range(members.size):
            magnitude = members[index] & _SIGN_OFF
            lowest, highest = min(lowest, magnitude), max(highest, magnitude)
        scales[2 * group], scales[2 * group + 1] = lowest, highest
        base = np.float64(_number(lowest))
        span = np.float64(_number(highest)) - base
        per_unit = top / span if span > 0 else 0.0
        for index in range(members.size):
            magnitude = members[index] & _SIGN_OFF
            level = np.uint32((np.float64(_number(magnitude)) - base) * per_unit + 0.5)
            levels[index] = members[index] >> np.uint32(31) << np.uint32(level_bits) | level


@compiled("boolean(uint32[::1], int64, uint32[::1], uint32[::1])")
def from_levels(codes: Array, level_bits: int, scales: Array, float_bits: Array) -> bool:
    """Undo ``to_levels`` in float64, rounded to fp32 at the end; False if a group's scales are not two finite
    magnitudes, the smaller first.
    """
    top = (1 << level_bits) - 1
    for group in range(scales.size // 2):
        lowest, highest = scales[2 * group], scales[2 * group + 1]
        if not lowest <= highest < _INFINITY:
            return False
        base = np.float64(_number(lowest))
        step = (np.float64(_number(highest)) - base) / np.float64(top)
        part = slice(group * GROUP, min((group + 1) * GROUP, codes.size))
        levels, numbers = codes[part], float_bits[part]
        for index in range(levels.size):
            sign = levels[index] >> np.uint32(level_bits) << np.uint32(31)
            magnitude = base + np.float64(levels[index] & np.uint32(top)) * step
            numbers[index] = _float_bits(np.float32(magnitude)) | sign
    return True


@compiled("uint32(uint32[::1], int64, int64)")
def smallest_exponent(codes: Array, exponent: int, mantissa: int) -> int:
    """Return the smallest exponent that is not zero's; 0 if there is none."""
    mask = np.uint32((1 << exponent) - 1)
    smallest = mask
    for index in range(codes.size):
        smallest = min(smallest, np.uint32((codes[index] >> np.uint32(mantissa)) - np.uint32(1)) & mask)
    return np.uint32(smallest + np.uint32(1)) & mask


@compiled("void(uint32[::1], int64, int64, uint32, uint32[::1])")
def to_numbers(codes: Array, exponent: int, mantissa: int, base: int, numbers: Array) -> None:
    """Move the sign below the exponent, and count that from ``base`` on, modulo its range: the smaller, the
    likelier.
    """
    mask, below = np.uint32((1 << exponent) - 1), np.uint32((1 << mantissa) - 1)
    for index in range(codes.size):
        code = codes[index]
        counted = np.uint32((code >> np.uint32(mantissa)) - base) & mask
        sign = code >> np.uint32(exponent + mantissa)
        numbers[index] = counted << np.uint32(mantissa + 1) | sign << np.uint32(mantissa) | (code & below)


@compiled("void(uint32[::1], int64, int64, uint32, uint32[::1])")
def from_numbers(numbers: Array, exponent: int, mantissa: int, base: int, codes: Array) -> None:
    """Undo ``to_numbers``."""
    mask, below = np.uint32((1 << exponent) - 1), np.uint32((1 << mantissa) - 1)
    for index in range(numbers.size):
        number = numbers[index]
        counted = np.uint32((number >> np.uint32(mantissa + 1)) + base) & mask
        sign = number >> np.uint32(mantissa) & np.uint32(1)
        codes[index] = (
            sign << np.uint32(exponent + mantissa) | counted << np.uint32(mantissa) | (number & below)
        )
