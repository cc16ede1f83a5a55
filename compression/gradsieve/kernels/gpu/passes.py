"""The triton kernels of :mod:`gradsieve.kernels.gpu.sums`: passes over a tensor in blocks.

Every program looks at one block of BLOCK elements and writes what is its own alone. Where an entry goes in a
list is the number of entries before it, in its block (a prefix sum) and in the blocks before (another, over
one number per block, between two kernels). So results depend neither on the order in which programs run nor
on how many run at a time, and no program waits for another.

Elements are counted in 64 bits. Numbers are fp32 and compared by the patterns of their magnitudes.
"""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 1024
ROOM = 64  # entries that a block can note: six times what a density of 1 % lists
OPTIONS = {"enable_fp_fusion": False}  # a fused multiply-add would round product and sum only once


_SIGN_OFF = tl.constexpr(0x7FFFFFFF)
_MANTISSA = tl.constexpr(0x007FFFFF)


@triton.jit
def widened(gradient: tl.tensor) -> tl.tensor:
    """Return numbers of any floating-point type as fp32."""
    if gradient.dtype == tl.bfloat16:  # fp32's upper half; triton's interpreter loses its denormals
        return (gradient.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return gradient.to(tl.float32)


@triton.jit
def bits(numbers: tl.tensor) -> tl.tensor:
    """Return the patterns of the magnitudes of fp32 numbers."""
    return numbers.to(tl.int32, bitcast=True) & _SIGN_OFF


@triton.jit
def _append(
    out_indices: tl.tensor,
    out_values: tl.tensor,
    start: tl.tensor,
    indices: tl.tensor,
    values: tl.tensor,
    compacted: tl.tensor,
) -> None:
    """Write those entries that are ``compacted`` to two lists from ``start`` on, in their order."""
    at = start + tl.cumsum(compacted.to(tl.int32), axis=0) - 1
    tl.store(out_indices + at, indices, mask=compacted)
    tl.store(out_values + at, values, mask=compacted)


@triton.jit(do_not_specialize=["upper", "lower"])
def sum_and_note(
    gradient: tl.tensor,
    scale: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    elements: tl.tensor,
    upper: tl.tensor,
    lower: tl.tensor,
    offsets: tl.tensor,
    values: tl.tensor,
    noted: tl.tensor,
    reached: tl.tensor,
    SUMMING: tl.constexpr,
    TAKE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROOM: tl.constexpr,
) -> None:
    """Make ``out = gradient * scale + residual``; note what reaches ``lower``; count what reaches ``upper``.

    Of a block with at most ROOM entries, ``offsets`` (int16) and ``values`` hold in row ``block`` the places
    within the block and the numbers; of others nothing. ``noted`` and ``reached`` (int32) hold the counts.
    TAKE: of a block that has room, what reaches ``upper`` is left 0 in ``out``. Not SUMMING: ``out`` holds
    the numbers, and stays as it is.
    """
    block = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    index = block * BLOCK + lane
    inside = index < elements
    if SUMMING:
        product = widened(tl.load(gradient + index, mask=inside, other=0.0)) * scale
        total = product + tl.load(residual + index, mask=inside, other=0.0)
    else:
        total = tl.load(out + index, mask=inside, other=0.0)
    magnitude_bits = bits(total)
    near_threshold = (inside & (magnitude_bits >= lower)).to(tl.int32)
    compacted = inside & (magnitude_bits >= upper)
    count = tl.sum(near_threshold, axis=0)
    tl.store(noted + block, count)
    tl.store(reached + block, tl.sum(compacted.to(tl.int32), axis=0))
    entry = tl.cumsum(near_threshold, axis=0) - 1
    fits = entry < tl.where(count <= ROOM, ROOM, 0)  # all or none of the entries
    if SUMMING:
        rest = tl.where(compacted & fits, 0.0, total) if TAKE else total
        tl.store(out + index, rest, mask=inside)
    writes = (near_threshold > 0) & fits
    tl.store(offsets + block * ROOM + entry, lane.to(tl.int16), mask=writes)
    tl.store(values + block * ROOM + entry, total, mask=writes)


@triton.jit(do_not_specialize=["magnitude_bits"])
def count_reaching(
    numbers: tl.tensor,
    elements: tl.tensor,
    magnitude_bits: tl.tensor,
    values: tl.tensor,
    noted: tl.tensor,
    reached: tl.tensor,
    BLOCK: tl.constexpr,
    ROOM: tl.constexpr,
) -> None:
    """Count anew, in ``reached``, what reaches a ``magnitude_bits`` that is not below what was noted."""
    block = tl.program_id(0).to(tl.int64)
    count = tl.load(noted + block)
    if count <= ROOM:
        entry = tl.arange(0, ROOM)
        entry_value = tl.load(values + block * ROOM + entry, mask=entry < count, other=0.0)
        entry_compacted = (entry < count) & (bits(entry_value) >= magnitude_bits)
        tl.store(reached + block, tl.sum(entry_compacted.to(tl.int32), axis=0))
    else:
        index = block * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(numbers + index, mask=index < elements, other=0.0)
        compacted = (index < elements) & (bits(value) >= magnitude_bits)
        tl.store(reached + block, tl.sum(compacted.to(tl.int32), axis=0))


@triton.jit(do_not_specialize=["magnitude_bits"])
def list_reaching(
    numbers: tl.tensor,
    elements: tl.tensor,
    magnitude_bits: tl.tensor,
    offsets: tl.tensor,
    values: tl.tensor,
    noted: tl.tensor,
    reached: tl.tensor,
    ends: tl.tensor,
    out_indices: tl.tensor,
    out_values: tl.tensor,
    TAKE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROOM: tl.constexpr,
) -> None:
    """List what reaches ``magnitude_bits``, by place: what was noted, and of blocks without room the numbers.

    ``reached`` counts these per block, ``ends`` (int64) all up to the block's end. TAKE: the numbers of
    blocks without room that are listed are left 0, those of the others already are.
    """
    block = tl.program_id(0).to(tl.int64)
    first = block * BLOCK
    count = tl.load(noted + block)
    start = tl.load(ends + block) - tl.load(reached + block)
    if count <= ROOM:
        entry = tl.arange(0, ROOM)
        offset = tl.load(offsets + block * ROOM + entry, mask=entry < count, other=0).to(tl.int64)
        entry_value = tl.load(values + block * ROOM + entry, mask=entry < count, other=0.0)
        entry_compacted = (entry < count) & (bits(entry_value) >= magnitude_bits)
        _append(out_indices, out_values, start, first + offset, entry_value, entry_compacted)
    else:
        index = first + tl.arange(0, BLOCK)
        value = tl.load(numbers + index, mask=index < elements, other=0.0)
        compacted = (index < elements) & (bits(value) >= magnitude_bits)
        _append(out_indices, out_values, start, index, value, compacted)
        if TAKE:
            tl.store(numbers + index, tl.zeros([BLOCK], tl.float32), mask=compacted)


@triton.jit
def largest_bits(numbers: tl.tensor, elements: tl.tensor, largest: tl.tensor, BLOCK: tl.constexpr) -> None:
    """Put the largest pattern of every block into ``largest`` (int32)."""
    block = tl.program_id(0).to(tl.int64)
    index = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(numbers + index, mask=index < elements, other=0.0)
    tl.store(largest + block, tl.max(bits(value), axis=0))


@triton.jit(do_not_specialize=["exponent"])
def fixed_point_sums(
    numbers: tl.tensor, elements: tl.tensor, exponent: tl.tensor, sums: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """Put the sum of trunc(|a| * 2^exponent) of every block into ``sums`` (int64); no term exceeds 2^30.

    In integers, so that neither the width of a device's arithmetic nor its treatment of denormals matters:
    |a| is its mantissa times a power of two, and the product a shift.
    """
    block = tl.program_id(0).to(tl.int64)
    index = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(numbers + index, mask=index < elements, other=0.0)
    magnitude_bits = bits(value)
    power = magnitude_bits >> 23
    mantissa = (magnitude_bits & _MANTISSA) | tl.where(power > 0, 1 << 23, 0)
    shift = tl.maximum(power, 1) - 150 + exponent
    left = mantissa << tl.minimum(tl.maximum(shift, 0), 30)
    right = mantissa >> tl.minimum(tl.maximum(-shift, 0), 31)
    tl.store(sums + block, tl.sum(tl.where(shift >= 0, left, right).to(tl.int64), axis=0))
