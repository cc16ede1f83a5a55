"""The compiled loop of group top-k: the largest of every group, while the group is in the nearest cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradsieve.kernels.jit import compiled
from gradsieve.kernels.lanes import LANES, lowest_bit, reaching, sum_reaching

Array = Any  # numpy arrays to the caller; the signatures say which
Number = Any

_F4, _I8 = "float32[::1]", "int64[::1]"
_SIGN_OFF = np.int32(0x7FFFFFFF)
_OFFSET_BITS = np.int64(31)
_LAST_OFFSET = np.int64(0x7FFFFFFF)
_MARGIN = np.int32(1 << 20)  # an eighth of an octave below the usual threshold: half as many again pass
_HALF = np.uint64(0xFFFFFFFF)
_ONE = np.uint32(1)


@compiled(f"int64({_I8}, int64, int64)")
def nth_largest(keys: Array, length: int, number: int) -> int:
    """Return the ``number``-th largest of ``length`` distinct keys, reordering them (quickselect)."""
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


@compiled("int64(float32, int64)", inline=True)
def _key(value: Number, offset: int) -> int:
    """Return what orders numbers by magnitude, and equal ones by position, the first being the largest."""
    pattern = np.int64(np.float32(value).view(np.int32) & _SIGN_OFF)
    return (pattern << _OFFSET_BITS) | (_LAST_OFFSET - offset)


@compiled(f"int64({_F4}, float32, {_F4}, {_F4}, boolean, int64, int64, int32, {_I8})", inline=True)
def _list_keys(
    gradient: Array,
    scale: Number,
    residual: Array,
    out: Array,
    summing: bool,
    start: int,
    stop: int,
    guess: Number,
    keys: Array,
) -> int:
    """List the keys of what reaches ``guess`` from ``start`` to ``stop``; return how many do.

    ``summing`` a second time stores the same numbers again. Values are then computed rather than read back:
    the store went past the caches.
    """
    found = 0
    whole = start + (stop - start) // LANES * LANES
    for first in range(start, whole, LANES):
        if summing:
            masks = sum_reaching(gradient, scale, residual, out, first, guess, guess, _SIGN_OFF)
        else:
            masks = reaching(out, first, guess, guess)
        mask = np.uint32(masks & _HALF)
        while mask != 0:
            place = first + np.int64(lowest_bit(mask))
            value = np.float32(gradient[place] * scale) + residual[place] if summing else out[place]
            keys[found] = _key(value, place - start)
            found += 1
            mask = np.uint32(mask & np.uint32(mask - _ONE))
    for place in range(whole, stop):
        if summing:
            out[place] = np.float32(gradient[place] * scale) + residual[place]
        keys[found] = _key(out[place], place - start)
        found += (keys[found] >> _OFFSET_BITS) >= guess
    return found


@compiled(
    f"int64({_F4}, float32, {_F4}, {_F4}, boolean, int64, int64, int64, int64, int64, "
    f"{_I8}, {_I8}, {_I8}, {_F4})"
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
    keys: Array,
    order: Array,
    places: Array,
    values: Array,
) -> int:
    """List the ``per_group`` largest of every ``size`` numbers; return how many are listed.

    ``summing``: first make ``out = gradient * scale + residual``, for which ``size`` must be a multiple of
    32; else ``out`` holds the numbers. ``keys`` and ``order`` have room for a group. ``in_last``: for a group
    that ``stop`` cuts short.

    1. List what reaches a guess, a little below what the groups before needed; if that is too few, guess
       less. Listed are keys: pattern first, then position, the lower the larger, so that no two are equal.
    2. Find the key that ``per_group`` keys reach.
    3. Emit what reaches it, in order of position.
    """
    listed = 0
    usual = np.int32(0)
    for first in range(start, stop, size):
        end = min(first + size, stop)
        wanted = per_group if end - first == size else in_last
        guess = max(usual - _MARGIN, np.int32(0))
        found = _list_keys(gradient, scale, residual, out, summing, first, end, guess, keys)
        step = _MARGIN
        while found < wanted:
            guess = max(guess - step, np.int32(0))
            step = np.int32(min(2 * np.int64(step), np.int64(1 << 29)))
            found = _list_keys(gradient, scale, residual, out, summing, first, end, guess, keys)
        order[:found] = keys[:found]
        cut = nth_largest(order, found, wanted)
        for entry in range(found):
            place = first + (_LAST_OFFSET - (keys[entry] & _LAST_OFFSET))
            places[listed] = place
            value = np.float32(gradient[place] * scale) + residual[place] if summing else out[place]
            values[listed] = value
            listed += keys[entry] >= cut
        threshold = np.int32(cut >> _OFFSET_BITS)
        usual = threshold if usual == 0 else np.int32(usual + (np.int64(threshold) - usual) // 8)
    return listed
