"""Numbers of any width in a string of bytes; the lowest bit of a byte comes first, as in docs/wire-format.md.

All loops of the codec are compiled and check no bounds of their own accord. So writers are given buffers with
SLACK bytes to spare, and readers are told the ``end`` of what they may look at.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from gradsieve.kernels.jit import compiled

SLACK = 8  # writers store whole words: bytes that they may touch behind the last one that counts
Array = Any  # numpy arrays to the caller; the signatures say which
_WORD = ir.IntType(64)
_IN_BYTE = np.uint64(7)
_WORD_BITS = np.uint64(64)


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.bitcast(builder.gep(array.data, [args[1]]), _WORD.as_pointer())


@intrinsic  # type: ignore[untyped-decorator]
def word_at(context: Any, data: Any, at: Any) -> Any:
    """Return the eight bytes of a uint8 array from byte ``at`` on as a uint64, the first one lowest.

    Numba knows little-endian processors only, so this is what a plain load gives.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(context, builder, signature, args), align=1)

    return types.uint64(data, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def put_word(context: Any, out: Any, at: Any, word: Any) -> Any:
    """Store a uint64 as eight bytes of a uint8 array from byte ``at`` on, the lowest first."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _pointer(context, builder, signature, args), align=1)
        return context.get_dummy_value()

    return types.void(out, types.int64, types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def ones(context: Any, word: Any) -> Any:
    """Return how many bits of a uint64 are ones."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def lowest_one(context: Any, word: Any) -> Any:
    """Return the place of the lowest one of a uint64 that is not zero."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@compiled("uint64(uint8[::1], int64, int64)", inline=True)
def word_within(data: Array, at: int, end: int) -> Any:
    """Return the eight bytes from ``at`` on as a uint64; those at ``end`` and beyond count as zeros."""
    if at + 8 <= end:
        return word_at(data, at)
    word = np.uint64(0)
    for index in range(at, end):
        word |= np.uint64(data[index]) << np.uint64(8 * (index - at))
    return word


@compiled("int64(uint32[::1], int64, int64, int64, uint8[::1], int64)")
def pack(numbers: Array, start: int, stop: int, width: int, out: Array, at: int) -> int:
    """Write the lowest ``width`` (0 to 32) bits of each of ``numbers[start:stop]`` from byte ``at`` on.

    Returns the byte after the last; unused bits of the last are zeros.
    """
    bits = np.uint64(width)
    mask = (np.uint64(1) << bits) - np.uint64(1)
    word, filled = np.uint64(0), np.uint64(0)
    for index in range(start, stop):
        number = np.uint64(numbers[index]) & mask
        word |= number << filled
        filled += bits
        if filled >= _WORD_BITS:
            put_word(out, at, word)
            at += 8
            filled -= _WORD_BITS
            word = number >> (bits - filled)
    put_word(out, at, word)
    return at + np.int64((filled + np.uint64(7)) >> np.uint64(3))


@compiled("int64(uint8[::1], int64, int64, int64, uint32[::1], int64, int64)")
def append(data: Array, at: int, end: int, width: int, numbers: Array, start: int, stop: int) -> int:
    """Append ``width`` (0 to 32) bits, packed from byte ``at`` on, to each of ``numbers[start:stop]`` as its
    lowest.

    Returns the byte after the last, which must not lie beyond ``end``. Eight numbers at a time take ``width``
    whole bytes, so that places and shifts are the same for all eights.
    """
    bits = np.uint64(width)
    mask = (np.uint64(1) << bits) - np.uint64(1)
    index = start
    while index + 8 <= stop and at + width + SLACK <= end:
        for number in range(8):
            bit = number * width
            word = word_at(data, at + (bit >> 3)) >> (np.uint64(bit) & _IN_BYTE)
            numbers[index + number] = np.uint64(numbers[index + number]) << bits | (word & mask)
        index += 8
        at += width
    for number in range(stop - index):
        bit = number * width
        word = word_within(data, at + (bit >> 3), end) >> (np.uint64(bit) & _IN_BYTE)
        numbers[index + number] = np.uint64(numbers[index + number]) << bits | (word & mask)
    return at + (((stop - index) * width + 7) >> 3)
