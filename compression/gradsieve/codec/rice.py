"""Golomb-Rice codes with a parameter per block: numbers near or below a power of two, in few bits.

A number g of a block with parameter p is its lowest p bits and the quotient g >> p, which is written as that
many zeros and a one. All parameters come first, then all low bits, then all quotients: so that reading the
quotients is a search for ones, and the low bits lie at known places (nearly twice as fast as whole codewords
one after the other). No quotient needs an escape: the best parameter of a block keeps the sum of its
quotients below its length, or is the highest, MOST, above which a quotient is at most one.

Golomb, Run-length encodings, IEEE Trans. Inf. Theory 12 (1966); Rice and Plaunt, IEEE Trans. Commun. 19
(1971).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradsieve.codec.bits import Array, append, lowest_one, ones, pack, put_word, word_within
from gradsieve.kernels.jit import compiled

BLOCK = 128  # seen on recorded gradients: 64 to 512 differ by 2 %, with 128 the best at a density of 1 %
MOST = 31
LARGEST = 2**32 - 1
ENDS_EARLY, OUT_OF_RANGE = -1, -2


@compiled("uint64(uint32[::1], int64, int64, int64)", inline=True)
def _sum_of_quotients(numbers: Array, start: int, stop: int, parameter: int) -> Any:
    total = np.uint64(0)
    for number in numbers[start:stop]:  # a slice: see `gradsieve.kernels.numba_kernels`
        total += np.uint64(number) >> np.uint64(parameter)
    return total


@compiled("int64(uint32[::1], uint8[::1])")
def plan(numbers: Array, parameters: Array) -> int:
    """Fill in the best parameter of every block (``parameters``: one per BLOCK numbers, the last may be
    shorter).

    Returns how many bytes ``write`` will take. The size is convex in the parameter: from one that exceeds the
    mean, go down while it pays.
    """
    low_bytes, unary_bits = 0, numbers.size
    for block in range(parameters.size):
        start = block * BLOCK
        stop = min(start + BLOCK, numbers.size)
        members = np.uint64(stop - start)
        total = _sum_of_quotients(numbers, start, stop, 0)
        parameter = 0
        while parameter < MOST and members << np.uint64(parameter) <= total:
            parameter += 1
        quotients = _sum_of_quotients(numbers, start, stop, parameter)
        while parameter > 0:
            larger = _sum_of_quotients(numbers, start, stop, parameter - 1)
            if larger - quotients >= members:
                break
            parameter -= 1
            quotients = larger
        parameters[block] = parameter
        low_bytes += ((stop - start) * parameter + 7) >> 3
        unary_bits += np.int64(quotients)
    return parameters.size + low_bytes + ((unary_bits + 7) >> 3)


@compiled("int64(uint32[::1], uint8[::1], uint8[::1], int64)")
def write(numbers: Array, parameters: Array, out: Array, at: int) -> int:
    """Write ``numbers`` with the parameters of ``plan`` to ``out`` from byte ``at`` on.

    Returns the byte after the last.
    """
    for block in range(parameters.size):
        out[at + block] = parameters[block]
    at += parameters.size
    for block in range(parameters.size):
        start = block * BLOCK
        at = pack(numbers, start, min(start + BLOCK, numbers.size), parameters[block], out, at)
    word, filled = np.uint64(0), 0
    for block in range(parameters.size):
        parameter = np.uint64(parameters[block])
        for index in range(block * BLOCK, min((block + 1) * BLOCK, numbers.size)):
            filled += np.int64(np.uint64(numbers[index]) >> parameter)
            while filled >= 64:
                put_word(out, at, word)
                at += 8
                word = np.uint64(0)
                filled -= 64
            word |= np.uint64(1) << np.uint64(filled)
            filled += 1
    put_word(out, at, word)
    return at + ((filled + 7) >> 3)


@compiled("int64(uint8[::1], int64, int64, uint32[::1])")
def _read_quotients(data: Array, at: int, end: int, numbers: Array) -> int:
    """Fill ``numbers`` with as many quotients; return the byte after the last, or ENDS_EARLY."""
    done, last, base, fetched = 0, -1, 0, at
    while done < numbers.size:
        if fetched >= end:
            return ENDS_EARLY
        word = word_within(data, fetched, end)
        here = min(ones(word), numbers.size - done)
        for index in range(done, done + here):
            one = base + lowest_one(word)
            word &= word - np.uint64(1)
            numbers[index] = one - last - 1
            last = one
        done += here
        fetched += 8
        base += 64
    return at + ((last + 8) >> 3)


@compiled("int64(uint8[::1], int64, int64, int64, uint32[::1])")
def read(data: Array, at: int, end: int, limit: int, numbers: Array) -> int:
    """Fill ``numbers`` from what ``write`` wrote at byte ``at``; nothing at or behind ``end`` is looked at.

    Returns the byte after the last one used; ENDS_EARLY; or OUT_OF_RANGE for a parameter above MOST or the
    binary digits of ``limit`` (below 2**32), or a quotient above limit >> parameter. So if ``limit`` is a
    power of two less one, no number is above it; otherwise the caller has to look.
    """
    blocks = (numbers.size + BLOCK - 1) // BLOCK
    low = at + blocks
    if low > end:
        return ENDS_EARLY
    unary = low
    for block in range(blocks):
        parameter = np.int64(data[at + block])
        if parameter > MOST or (1 << parameter) >> 1 > limit:
            return OUT_OF_RANGE
        unary += (min(BLOCK, numbers.size - block * BLOCK) * parameter + 7) >> 3
    if unary > end:
        return ENDS_EARLY
    after = _read_quotients(data, unary, end, numbers)
    if after < 0:
        return after
    for block in range(blocks):
        start = block * BLOCK
        stop = min(start + BLOCK, numbers.size)
        parameter = np.int64(data[at + block])
        largest = np.uint32(0)
        for quotient in numbers[start:stop]:
            largest = max(largest, quotient)
        if np.int64(largest) > limit >> parameter:
            return OUT_OF_RANGE
        low = append(data, low, end, parameter, numbers, start, stop)
    return after
