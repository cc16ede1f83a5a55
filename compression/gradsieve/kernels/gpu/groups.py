"""The triton kernel of group top-k: whole groups in registers, each looked at once.

How many entries a group gives is known before: so the list's length and every entry's place in it are too,
and nobody has to wait for a count.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gradsieve.kernels.gpu.passes import bits, widened

LARGEST = 8192  # elements of a group that still fit into one program's registers
_ELEMENTS = 1024  # per program, in as many groups as it takes


_SIGN_OFF = tl.constexpr(0x7FFFFFFF)


def tile_of(group_size: int) -> tuple[int, int, int]:
    """Return how many groups a program takes, how many elements it has room for in each, and its warps."""
    columns: int = triton.next_power_of_2(group_size)
    return max(_ELEMENTS // columns, 1), columns, min(max(columns // 256, 4), 32)


@triton.jit(do_not_specialize=["per_group", "in_last"])
def group_top_k(
    gradient: tl.tensor,
    scale: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    elements: tl.tensor,
    per_group: tl.tensor,
    in_last: tl.tensor,
    indices: tl.tensor,
    values: tl.tensor,
    lowest: tl.tensor,
    SUMMING: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """List the ``per_group`` largest of every SIZE numbers, by place, ties by lowest place.

    SUMMING: make ``out = gradient * scale + residual``; else ``out`` holds the numbers. ``in_last``: for a
    group that ``elements`` cuts short. ``lowest`` (int32): the smallest pattern that a program's groups gave.

    1. Find every group's n-th largest pattern from its highest bit down: a bit is set if enough numbers
       reach what it makes. 31 counts in registers, whatever the numbers are.
    2. Keep what exceeds that pattern, and of what equals it the first, by a prefix sum.
    3. Write each kept number to its group's part of the list, at its rank, by another.
    """
    group = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    index = (group * SIZE)[:, None] + column[None, :]
    inside = (column < SIZE)[None, :] & (index < elements)
    if SUMMING:
        product = widened(tl.load(gradient + index, mask=inside, other=0.0)) * scale
        total = product + tl.load(residual + index, mask=inside, other=0.0)
        tl.store(out + index, total, mask=inside)
    else:
        total = tl.load(out + index, mask=inside, other=0.0)
    magnitude_bits = tl.where(inside, bits(total), -1)
    wanted = tl.where((group + 1) * SIZE <= elements, per_group, in_last)
    nth = tl.zeros([ROWS], tl.int32)
    for bit in range(31):
        probe = nth | (1 << (30 - bit))
        reached = tl.sum((magnitude_bits >= probe[:, None]).to(tl.int32), axis=1)
        nth = tl.where(reached >= wanted, probe, nth)
    above = magnitude_bits > nth[:, None]
    tied = (magnitude_bits == nth[:, None]).to(tl.int32)
    ties = wanted - tl.sum(above.to(tl.int32), axis=1)
    keep = above | ((tied > 0) & (tl.cumsum(tied, axis=1) <= ties[:, None]))
    at = (group * per_group)[:, None] + tl.cumsum(keep.to(tl.int32), axis=1) - 1
    tl.store(indices + at, index, mask=keep)
    tl.store(values + at, total, mask=keep)
    tl.store(lowest + tl.program_id(0), tl.min(tl.where(group * SIZE < elements, nth, _SIGN_OFF), axis=0))
