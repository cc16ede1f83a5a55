"""Cutting a flat gradient into a block per rank, and putting the sums of all blocks together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradsieve.sparse_gradient import SparseGradient

from .base import Exchanged, read, refusal

Bounds = tuple[int, ...]
"""Where blocks begin, and where the last one ends: P + 1 positions from 0 to N."""


def equal_bounds(elements: int, blocks: int, group: int = 1) -> Bounds:
    """Return bounds of equal blocks, a multiple of ``group`` long; the last may be shorter, or empty."""
    size = -(-elements // (blocks * group)) * group
    return tuple(min(block * size, elements) for block in range(blocks + 1))


def balanced_bounds(counts: Tensor, cell: int, elements: int, blocks: int) -> Bounds:
    """Return bounds between which there are about as many entries.

    counts: int64 [C], the entries of all ranks in each cell of ``cell`` positions. Bounds lie between cells.
    """
    summed = torch.cumsum(counts, 0)
    wanted = summed[-1].item() * torch.arange(1, blocks, dtype=torch.float64, device="cpu") / blocks
    cells = torch.searchsorted(summed.to(torch.float64), wanted) + 1
    inner = [min(int(each) * cell, elements) for each in cells]
    return (0, *inner, elements)


def most_per_block(most: int | None, blocks: int, block: SparseGradient) -> int:
    """Return how many entries of a block may be kept if the whole may have ``most``."""
    return block.count if most is None else -(-most // blocks)


def put_together(
    messages: Sequence[Tensor], bounds: Bounds, rejected: Sequence[tuple[int, SparseGradient]]
) -> Exchanged:
    """Return what an exchange came to from the sums of all blocks, by block.

    rejected: blocks with their first positions; those that begin at one position are added up.
    """
    elements = bounds[-1]
    sums: list[tuple[int, SparseGradient]] = []
    for message, start, stop in zip(messages, bounds, bounds[1:], strict=False):
        block = read(message, stop - start)
        if block is None:
            return refusal(elements)
        sums.append((start, block))
    by_start: dict[int, SparseGradient] = {}
    for start, block in rejected:
        if block.count:
            by_start[start] = by_start[start].plus(block) if start in by_start else block
    taken = SparseGradient.joined(sorted(by_start.items(), key=lambda it: it[0]), elements)
    return Exchanged((SparseGradient.joined(sums, elements),), taken)
