"""The compiled loops of the index codings.

Writers return the byte after the last one written. Readers return 0 or one of the (negative) faults; they
fill ``indices`` and must end exactly at ``end``. Positions are int64 [K], strictly increasing, below
``elements``.
"""

from __future__ import annotations

import numpy as np

from gradsieve.codec import rice
from gradsieve.codec.bits import Array, lowest_one, word_within
from gradsieve.kernels.jit import compiled

ESCAPE = 255
GROUP = 1 << 16
LEFT_OVER, FALLING, BEYOND, MISCOUNTED = -3, -4, -5, -6  # the lower ones are those of Golomb-Rice codes
_IN_GROUP = GROUP - 1
_BY_ESCAPE = np.uint64(
    0x80808081
)  # times this, over 2**39: a division that vector units can do, exact below 2**32
_WRITER = "int64(int64[::1], int64, uint8[::1], int64)"
_READER = "int64(uint8[::1], int64, int64, int64, int64[::1])"


@compiled("UniTuple(int64, 2)(int64[::1], int64, uint32[::1])")
def measure(indices: Array, elements: int, gaps: Array) -> tuple[int, int]:
    """Fill ``gaps`` with the distance to the previous position, less one (of which the lowest 32 bits).

    Returns the widest gap, or FALLING or BEYOND for positions that are not as they must be; and the sum of
    gap // ESCAPE.
    """
    widest, signs, last = 0, 0, -1
    for index in range(indices.size):
        gap = indices[index] - last - 1
        last = indices[index]
        signs |= gap
        widest = max(widest, gap)
        gaps[index] = gap
    if signs < 0 or last >= elements:
        return (FALLING if signs < 0 else BEYOND), 0
    escapes = 0
    if widest > rice.LARGEST:
        for index in range(1, indices.size):
            escapes += (indices[index] - indices[index - 1] - 1) // ESCAPE
        return widest, escapes + indices[0] // ESCAPE
    for index in range(gaps.size):
        escapes += np.int64(np.uint64(gaps[index]) * _BY_ESCAPE >> np.uint64(39))
    return widest, escapes


@compiled("boolean(int64[::1])")
def fills_a_group(indices: Array) -> bool:
    """Return whether all positions of a group of GROUP are there."""
    for index in range(_IN_GROUP, indices.size):
        first = indices[index - _IN_GROUP]
        if indices[index] - first == _IN_GROUP and first & _IN_GROUP == 0:
            return True
    return False


@compiled(_WRITER)
def write_gap_bytes(indices: Array, elements: int, out: Array, at: int) -> int:  # noqa: ARG001 - one signature
    """Write every gap as ESCAPE bytes and one byte below ESCAPE."""
    last = -1
    for index in range(indices.size):
        gap = indices[index] - last - 1
        last = indices[index]
        while gap >= ESCAPE:
            out[at] = ESCAPE
            at += 1
            gap -= ESCAPE
        out[at] = gap
        at += 1
    return at


@compiled(_READER)
def read_gap_bytes(data: Array, at: int, end: int, elements: int, indices: Array) -> int:
    """Read what ``write_gap_bytes`` wrote."""
    done, position = 0, -1
    for index in range(at, end):
        position += np.int64(data[index])
        if data[index] != ESCAPE:
            position += 1
            if done == indices.size:
                return LEFT_OVER
            if position >= elements:
                return BEYOND
            indices[done] = position
            done += 1
    if end > at and data[end - 1] == ESCAPE:
        return LEFT_OVER
    return 0 if done == indices.size else rice.ENDS_EARLY


@compiled(_WRITER)
def write_groups(indices: Array, elements: int, out: Array, at: int) -> int:
    """Write how many positions each group has, then every position's offset in its group."""
    groups = (elements + GROUP - 1) // GROUP
    offsets = at + 2 * groups
    done = 0
    for group in range(groups):
        before = done
        while done < indices.size and indices[done] // GROUP == group:
            offset = indices[done] & _IN_GROUP
            out[offsets + 2 * done] = offset & 0xFF
            out[offsets + 2 * done + 1] = offset >> 8
            done += 1
        out[at + 2 * group] = (done - before) & 0xFF
        out[at + 2 * group + 1] = (done - before) >> 8
    return offsets + 2 * done


@compiled(_READER)
def read_groups(data: Array, at: int, end: int, elements: int, indices: Array) -> int:
    """Read what ``write_groups`` wrote."""
    groups = (elements + GROUP - 1) // GROUP
    offsets = at + 2 * groups
    if end - at != 2 * (groups + indices.size):
        return MISCOUNTED
    done = 0
    for group in range(groups):
        members = np.int64(data[at + 2 * group]) | np.int64(data[at + 2 * group + 1]) << 8
        if members > indices.size - done:
            return MISCOUNTED
        last = -1
        for _ in range(members):
            offset = np.int64(data[offsets + 2 * done]) | np.int64(data[offsets + 2 * done + 1]) << 8
            if offset <= last:
                return FALLING
            last = offset
            indices[done] = group * GROUP + offset
            done += 1
    if done != indices.size:
        return MISCOUNTED
    return BEYOND if done and indices[done - 1] >= elements else 0


@compiled(_READER)
def read_rice(data: Array, at: int, end: int, elements: int, indices: Array) -> int:
    """Read gaps as Golomb-Rice codes, into the upper half of the memory that their sums then fill.

    A sum never overwrites a gap that is still to come.
    """
    gaps = indices.view(np.uint32)[indices.size :]
    after = rice.read(data, at, end, min(elements, rice.LARGEST), gaps)
    if after != end:
        return after if after < 0 else LEFT_OVER
    position = -1
    for index in range(indices.size):
        position += np.int64(gaps[index]) + 1
        if position >= elements:
            return BEYOND
        indices[index] = position
    return 0


@compiled(_WRITER)
def write_bitmap(indices: Array, elements: int, out: Array, at: int) -> int:
    """Write a bit per element, one where it has a value."""
    end = at + ((elements + 7) >> 3)
    out[at:end] = 0
    for index in range(indices.size):
        out[at + (indices[index] >> 3)] |= np.uint8(1 << (indices[index] & 7))
    return end


@compiled(_READER)
def read_bitmap(data: Array, at: int, end: int, elements: int, indices: Array) -> int:
    """Read what ``write_bitmap`` wrote."""
    if end - at != (elements + 7) >> 3:
        return MISCOUNTED
    done = 0
    for index in range(at, end, 8):
        word = word_within(data, index, end)
        while word != 0:
            position = 8 * (index - at) + lowest_one(word)
            if position >= elements:
                return BEYOND
            if done == indices.size:
                return MISCOUNTED
            indices[done] = position
            done += 1
            word &= word - np.uint64(1)
    return 0 if done == indices.size else MISCOUNTED
