"""The compiled loop of group top-k: the largest of every group, while the group is in the nearest cache.

A group is looked at twice. First the largest magnitude in each of many lanes is found. As many different
elements as are wanted reach the n-th largest of these peaks: a cut that never fails, however groups differ,
and that lets through little more than is wanted. Then what reaches the cut is listed, and the rest is exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradsieve.kernels.jit import compiled
from gradsieve.kernels.simd import (
    LANES,
    fetch,
    find_peaks,
    find_sum_peaks,
    lowest_bit,
    peaks_reaching,
    reaching,
    sum_reaching,
)

Array = Any  # numpy arrays to the caller; the signatures say which
Number = Any

_F4, _I4, _I8 = "float32[::1]", "int32[::1]", "int64[::1]"
_SIGN_OFF = np.int32(0x7FFFFFFF)
_OFFSET_BITS = np.int64(31)
_LAST_OFFSET = np.int64(0x7FFFFFFF)
_FEW = 64
_SPARE = 2
_STRIDE = np.int64(1 << 19)  # a sixteenth of an octave
_HALF = np.uint64(0xFFFFFFFF)
_ONE = np.uint32(1)
_HIGHEST_KEY = np.int64((1 << 63) - 1)


@compiled(f"int64({_I8}, int64, int64)")
def nth_by_counting(keys: Array, length: int, number: int) -> int:
    """Return the ``number``-th largest of a few keys: the one that ``number - 1`` exceed.

    Quadratic, but without a branch that a processor could guess wrong.
    """
    nth = np.int64(0)
    for entry in range(length):
        reached = 0
        for other in range(length):
            reached += keys[other] >= keys[entry]
        nth = max(nth, keys[entry]) if reached >= number else nth
    return nth


@compiled(f"int64({_I8}, int64, int64)")
def nth_by_parting(keys: Array, length: int, number: int) -> int:
    """Return the ``number``-th largest of many keys, reordering them (quickselect)."""
    left = 0
    right = length - 1
    wanted = number - 1
    while left < right:
        pivot = keys[(left + right) >> 1]
        low = left
        high = right
        while low <= high:
            while keys[low] > pivot:
                low += 1
            while keys[high] < pivot:
                high -= 1
            if low <= high:
                keys[low], keys[high] = keys[high], keys[low]
                low += 1
                high -= 1
        if wanted <= high:
            right = high
        elif wanted >= low:
            left = low
        else:
            break
    return keys[wanted]


@compiled(f"int64({_I8}, {_I8}, int64, int64)", inline=True)
def _nth_largest(keys: Array, order: Array, length: int, number: int) -> int:
    """Return the ``number``-th largest of ``length`` keys; ``order`` is work space."""
    if length <= _FEW:
        return nth_by_counting(keys, length, number)
    order[:length] = keys[:length]
    return nth_by_parting(order, length, number)


@compiled("int64(float32, int64)", inline=True)
def _key(value: Number, offset: int) -> int:
    """Return what orders numbers by magnitude, and equal ones by position, the first being the largest."""
    magnitude_bits = np.int64(np.float32(value).view(np.int32) & _SIGN_OFF)
    return (magnitude_bits << _OFFSET_BITS) | (_LAST_OFFSET - offset)


@compiled(f"int32({_I4}, int64, int32)", inline=True)
def _below_nth_peak(peaks: Array, number: int, guess: Number) -> Number:
    """Return a pattern that ``number`` of the first 32 peaks reach, and few more unless peaks are equal.

    Probes go from ``guess`` by strides that double until they have passed the answer, then halve the rest.
    """
    lower = np.int64(0)
    upper = np.int64(1) << 31
    probe = np.int64(guess)
    stride = _STRIDE
    while upper - lower > 1:
        if not lower < probe < upper:
            probe = (lower + upper) >> 1
        reached = peaks_reaching(peaks, np.int32(probe))
        if number <= reached <= number + _SPARE:
            return np.int32(probe)
        if reached > number:
            lower = probe
            probe = probe + stride if upper == np.int64(1) << 31 else 0
        else:
            upper = probe
            probe = probe - stride if lower == 0 else 0
        stride += stride
    return np.int32(lower)


@compiled(
    f"int32({_F4}, float32, {_F4}, {_F4}, boolean, int64, int64, int64, int32, {_I4}, {_I8}, {_I8})",
    inline=True,
)
def _cut(
    gradient: Array,
    scale: Number,
    residual: Array,
    out: Array,
    summing: bool,
    start: int,
    stop: int,
    wanted: int,
    guess: Number,
    peaks: Array,
    keys: Array,
    order: Array,
) -> Number:
    """Return a pattern that at least ``wanted`` numbers of a group reach, and not many more.

    ``guess`` saves time. 0 where there are too few numbers for the lanes to tell. ``peaks``, ``keys`` and
    ``order`` are work space.
    """
    lanes = (2 * wanted + LANES - 1) // LANES * LANES
    whole = (stop - start) // LANES * LANES
    if 2 * lanes > whole:
        return np.int32(0)
    count = whole // lanes
    for lane in range(0, lanes, LANES):
        if summing:
            find_sum_peaks(gradient, scale, residual, start + lane, lanes, count, peaks, lane)
        else:
            find_peaks(out, start + lane, lanes, count, peaks, lane)
    if lanes == LANES:
        return _below_nth_peak(peaks, wanted, guess)
    for lane in range(lanes):
        keys[lane] = peaks[lane]
    return np.int32(_nth_largest(keys, order, lanes, wanted))


@compiled(
    f"int64({_F4}, float32, {_F4}, {_F4}, boolean, int64, int64, int32, {_I8}, {_I8}, {_F4}, int64)",
    inline=True,
)
def _list(
    gradient: Array,
    scale: Number,
    residual: Array,
    out: Array,
    summing: bool,
    start: int,
    stop: int,
    cut: Number,
    keys: Array,
    indices: Array,
    values: Array,
    compacted: int,
) -> int:
    """List what reaches ``cut`` from ``start`` to ``stop``, from entry ``compacted`` on; return how many do.

    If ``summing``, ``out`` is made here; values are computed again rather than read back, as the store went
    past the caches. Meanwhile the next group is fetched, which the processor does not foresee.
    """
    found = 0
    whole = start + (stop - start) // LANES * LANES
    ahead = stop - start
    for first in range(start, whole, LANES):
        if summing:
            fetch(gradient, first + ahead)
            fetch(residual, first + ahead)
            masks = sum_reaching(gradient, scale, residual, out, first, cut, cut, _SIGN_OFF)
        else:
            fetch(out, first + ahead)
            masks = reaching(out, first, cut, cut)
        mask = np.uint32(masks & _HALF)
        while mask != 0:
            index = first + np.int64(lowest_bit(mask))
            value = np.float32(gradient[index] * scale) + residual[index] if summing else out[index]
            indices[compacted + found] = index
            values[compacted + found] = value
            keys[found] = _key(value, index - start)
            found += 1
            mask = np.uint32(mask & np.uint32(mask - _ONE))
    for index in range(whole, stop):
        if summing:
            out[index] = np.float32(gradient[index] * scale) + residual[index]
        indices[compacted + found] = index
        values[compacted + found] = out[index]
        keys[found] = _key(out[index], index - start)
        found += (keys[found] >> _OFFSET_BITS) >= cut
    return found


@compiled(f"int64({_I8}, {_I8}, int64, int64)", inline=True)
def _last_wanted(keys: Array, order: Array, found: int, wanted: int) -> int:
    """Return the ``wanted``-th largest of ``found`` keys; ``order`` is work space."""
    if found - wanted > _SPARE + _SPARE:
        return _nth_largest(keys, order, found, wanted)
    last = np.int64(-1)
    for _ in range(found - wanted + 1):
        lowest = _HIGHEST_KEY
        for entry in range(found):
            key = keys[entry]
            lowest = key if (key > last) & (key < lowest) else lowest
        last = lowest
    return last


@compiled(
    f"int64({_F4}, float32, {_F4}, {_F4}, boolean, int64, int64, int64, int64, int64, "
    f"{_I4}, {_I8}, {_I8}, {_I8}, {_F4})"
)
def group_top_k(
    gradient: Array,
    scale: Number,
    residual: Array,
    out: Array,
    summing: bool,
    start: int,
    stop: int,
    size: int,
    per_group: int,
    in_last: int,
    peaks: Array,
    keys: Array,
    order: Array,
    indices: Array,
    values: Array,
) -> int:
    """List the ``per_group`` largest of every ``size`` numbers; return how many are listed.

    ``summing``: make ``out = gradient * scale + residual``, for which ``size`` must be a multiple of 32; else
    ``out`` holds the numbers. ``peaks``, ``keys`` and ``order`` have room for a group and 32 more,
    ``indices`` and ``values`` for a group more than is kept.
    ``in_last``: for a group that ``stop`` cuts short.

    1. Find a cut that enough numbers reach.
    2. List what reaches it, and its keys: pattern first, then position, the lower the larger; no two are
       equal.
    3. Find the key that ``per_group`` keys reach; drop from the list what does not reach it.
    """
    compacted = 0
    cut = np.int32(1 << 29)
    for first in range(start, stop, size):
        end = min(first + size, stop)
        wanted = per_group if end - first == size else in_last
        cut = _cut(gradient, scale, residual, out, summing, first, end, wanted, cut, peaks, keys, order)
        found = _list(
            gradient, scale, residual, out, summing, first, end, cut, keys, indices, values, compacted
        )
        if found == wanted:
            compacted += wanted
            continue
        last = _last_wanted(keys, order, found, wanted)
        kept = compacted
        for entry in range(found):
            indices[kept] = indices[compacted + entry]
            values[kept] = values[compacted + entry]
            kept += keys[entry] >= last
        compacted = kept
    return compacted
