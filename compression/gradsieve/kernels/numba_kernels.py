"""The compiled loops of :mod:`gradsieve.kernels.cpu`: one thread's part of a pass each.

Numbers are fp32 and compared by the patterns of their magnitudes (:mod:`gradsieve.kernels.magnitude`). Parts
start at multiples of 32 elements. Nothing here allocates, and nothing depends on what runs beside it.

Where a loop is to become vector instructions, it runs over a slice: of an index that starts at an argument,
numba asks before every access whether it is negative, and LLVM vectorises nothing.

``indices`` and ``values`` are lists with room: what does not fit is counted and not written. A number that
reaches ``lower`` but not ``upper`` is *near*; near ones are noted as bits, 32 to a word, so that a second
look at them needs no second pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradsieve.kernels.jit import compiled
from gradsieve.kernels.simd import LANES, bits_set, fetch, lowest_bit, reaching, sum_reaching

Array = Any  # numpy arrays to the caller; the signatures say which
Number = Any

_F4, _I8, _U4 = "float32[::1]", "int64[::1]", "uint32[::1]"
_SIGN_OFF = np.int32(0x7FFFFFFF)
_HALF = np.uint64(0xFFFFFFFF)
_ONE = np.uint32(1)
_AHEAD = 512  # elements: half a page, as processors do not look over a page's end by themselves


@compiled(
    f"int64({_F4}, float32, {_F4}, {_F4}, int64, int64, int32, int32, boolean, {_I8}, {_F4}, {_U4})",
)
def sum_and_list(
    gradient: Array,
    scale: Number,
    residual: Array,
    out: Array,
    start: int,
    stop: int,
    upper: Number,
    lower: Number,
    take: bool,
    indices: Array,
    values: Array,
    near_threshold: Array,
) -> int:
    """Make ``out = gradient * scale + residual`` in a part; list what reaches ``upper`` there.

    Returns how many do. ``take``: what reaches ``upper`` is left 0 in ``out``. ``out`` overlaps nothing else
    and is aligned to 32 bytes.
    """
    compacted = 0
    whole = start + (stop - start) // LANES * LANES
    room = indices.size
    left = upper - np.int32(1) if take else _SIGN_OFF
    for first in range(start, whole, LANES):
        fetch(gradient, first + _AHEAD)
        fetch(residual, first + _AHEAD)
        masks = sum_reaching(gradient, scale, residual, out, first, upper, lower, left)
        mask = np.uint32(masks & _HALF)
        near_threshold[(first - start) // LANES] = np.uint32(masks >> np.uint64(LANES)) ^ mask
        if compacted + LANES > room:
            compacted += np.int64(bits_set(mask))
            continue
        while mask != 0:
            index = first + np.int64(lowest_bit(mask))
            indices[compacted] = index
            values[compacted] = np.float32(gradient[index] * scale) + residual[index]
            compacted += 1
            mask = np.uint32(mask & np.uint32(mask - _ONE))
    bits = out.view(np.int32)
    tail = np.uint32(0)
    for index in range(whole, stop):
        out[index] = np.float32(gradient[index] * scale) + residual[index]
        magnitude_bits = bits[index] & _SIGN_OFF
        if lower <= magnitude_bits < upper:
            tail |= np.uint32(_ONE << np.uint32(index - whole))
        elif magnitude_bits >= upper:
            if compacted < room:
                indices[compacted] = index
                values[compacted] = out[index]
            compacted += 1
            if magnitude_bits > left:
                out[index] = np.float32(0)
    if whole < stop:
        near_threshold[(whole - start) // LANES] = tail
    return compacted


@compiled(f"int64({_F4}, int64, int64, int32, {_I8}, {_F4})")
def list_reaching(
    numbers: Array, start: int, stop: int, magnitude_bits: Number, indices: Array, values: Array
) -> int:
    """List what reaches ``magnitude_bits`` from ``start`` to ``stop`` and return how many do."""
    compacted = 0
    whole = start + (stop - start) // LANES * LANES
    room = indices.size
    for first in range(start, whole, LANES):
        mask = np.uint32(reaching(numbers, first, magnitude_bits, magnitude_bits) & _HALF)
        if compacted + LANES > room:
            compacted += np.int64(bits_set(mask))
            continue
        while mask != 0:
            index = first + np.int64(lowest_bit(mask))
            indices[compacted] = index
            values[compacted] = numbers[index]
            compacted += 1
            mask = np.uint32(mask & np.uint32(mask - _ONE))
    bits = numbers.view(np.int32)
    for index in range(whole, stop):
        if bits[index] & _SIGN_OFF >= magnitude_bits:
            if compacted < room:
                indices[compacted] = index
                values[compacted] = numbers[index]
            compacted += 1
    return compacted


@compiled(f"int64({_U4}, int64)")
def count_near_threshold(near_threshold: Array, groups: int) -> int:
    """Return how many near ones the first ``groups`` masks hold."""
    count = 0
    for group in range(groups):
        count += np.int64(bits_set(near_threshold[group]))
    return count


@compiled(f"int64({_I8}, {_F4}, int64, {_F4}, int64, int64, {_U4}, int32, {_I8}, {_F4})")
def list_near_threshold(
    indices: Array,
    values: Array,
    compacted: int,
    numbers: Array,
    start: int,
    stop: int,
    near_threshold: Array,
    magnitude_bits: Number,
    out_indices: Array,
    out_values: Array,
) -> int:
    """Merge the list, by index, with those near ones that reach ``magnitude_bits``; return the new length.

    The new list must have one entry's room more than there are listed and near ones.
    """
    bits = numbers.view(np.int32)
    taken = 0
    length = 0
    for first in range(start, stop, LANES):
        mask = near_threshold[(first - start) // LANES]
        while mask != 0:
            index = first + np.int64(lowest_bit(mask))
            mask = np.uint32(mask & np.uint32(mask - _ONE))
            while taken < compacted and indices[taken] < index:
                out_indices[length] = indices[taken]
                out_values[length] = values[taken]
                length += 1
                taken += 1
            out_indices[length] = index
            out_values[length] = numbers[index]
            length += (bits[index] & _SIGN_OFF) >= magnitude_bits
    while taken < compacted:
        out_indices[length] = indices[taken]
        out_values[length] = values[taken]
        length += 1
        taken += 1
    return length


@compiled(f"int64({_F4}, int32)")
def count_reaching(values: Array, magnitude_bits: Number) -> int:
    """Return how many of ``values`` reach ``magnitude_bits``."""
    count = 0
    for bits in values.view(np.int32):
        count += (bits & _SIGN_OFF) >= magnitude_bits
    return count


@compiled(f"int64({_I8}, {_F4}, int32, int64, {_I8}, {_F4})")
def pick(
    indices: Array, values: Array, magnitude_bits: Number, ties: int, out_indices: Array, out_values: Array
) -> int:
    """Copy the entries above ``magnitude_bits`` and the first ``ties`` of those at it; return how many.

    The target has one entry's room more than is copied.
    """
    length = 0
    for entry in range(indices.size):
        magnitude = values.view(np.int32)[entry] & _SIGN_OFF
        tied = (magnitude == magnitude_bits) & (ties > 0)
        out_indices[length] = indices[entry]
        out_values[length] = values[entry]
        length += (magnitude > magnitude_bits) | tied
        ties -= tied
    return length


@compiled(f"void({_F4}, {_I8}, {_F4})")
def put(numbers: Array, indices: Array, values: Array) -> None:
    """Put ``values`` at ``indices`` of ``numbers``."""
    for entry in range(indices.size):
        numbers[indices[entry]] = values[entry]


@compiled(f"void({_F4}, {_I8})")
def clear(numbers: Array, indices: Array) -> None:
    """Set ``numbers`` to 0 at ``indices``."""
    for entry in range(indices.size):
        numbers[indices[entry]] = np.float32(0)


@compiled(f"void({_F4}, {_I8}, {_F4}, float32)")
def add_at(numbers: Array, indices: Array, values: Array, alpha: Number) -> None:
    """Add ``alpha * values`` at ``indices`` of ``numbers``; product and sum are rounded separately."""
    for entry in range(indices.size):
        numbers[indices[entry]] += np.float32(alpha * values[entry])


@compiled(f"int32({_F4})")
def lowest_bits(values: Array) -> int:
    """Return the smallest pattern, the largest possible if there are no values."""
    lowest = _SIGN_OFF
    for bits in values.view(np.int32):
        lowest = min(lowest, bits & _SIGN_OFF)
    return lowest


@compiled(f"void({_F4}, float32, {_F4}, float32, {_F4}, int64, int64)")
def add_scaled(
    first: Array, factor: Number, second: Array, scale: Number, out: Array, start: int, stop: int
) -> None:
    """Make ``out = first * factor + second * scale`` from ``start`` to ``stop``."""
    first, second, out = first[start:stop], second[start:stop], out[start:stop]
    for index in range(out.size):
        out[index] = np.float32(first[index] * factor) + np.float32(second[index] * scale)


@compiled(f"int32({_F4}, int64, int64)")
def largest_bits(numbers: Array, start: int, stop: int) -> int:
    """Return the largest pattern from ``start`` to ``stop``, 0 if there is none."""
    largest = np.int32(0)
    for bits in numbers[start:stop].view(np.int32):
        largest = max(largest, bits & _SIGN_OFF)
    return largest


@compiled(f"int64({_F4}, int64, int64, float64)")
def fixed_point_sum(numbers: Array, start: int, stop: int, scale: float) -> int:
    """Return the sum of trunc(|a| * scale) from ``start`` to ``stop``; |a| * scale is at most 2^30."""
    total = 0
    for number in numbers[start:stop]:
        total += np.int64(abs(np.float64(number)) * scale)
    return total
