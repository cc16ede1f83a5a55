"""A dense sum over messages between ranks, by the way that suits its size."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from .block_sum import BlockSum, sum_at_once
from .peers import Peers
from .ring_sum import SEGMENT_ELEMENTS, RingSum
from .side_by_side import SideBySide

AT_ONCE_ELEMENTS = 2 * 1024
"""Up to so many every rank sends all to all others: what four ranks save by blocks takes 100 Mbit/s a
millisecond."""

RINGS_AT_ONCE = 3
"""Sums around a ring: at the end of one a rank waits for what it could hand on, and its link would rest. Over
100 Mbit/s four ranks took 3.26 s a step with 24.5 MB in five buckets; one after another, 3.43 s."""


def begin_sum(
    values: Tensor, rank: int, size: int, peers: Peers, threads: SideBySide
) -> Callable[[], Tensor]:
    """Begin a sum over all ranks, and return what waits for the others and does the rest.

    Few values go to everyone at once, more by blocks; those of which a block is longer than a segment go
    around the ring, where one segment travels on while the next arrives. What goes by blocks can be
    `Advancing`.

    Args:
        values: fp32 [N] on the CPU, not mutated, and not to be until the sum is there; as many on each rank.
        rank: this one's number.
        size: how many there are, 2 or more.
        peers: for messages of this sum alone.
        threads: for rings, of which several go on side by side.

    Raises:
        ExchangeError: as ``peers``.
    """
    values = values.contiguous()
    if values.numel() <= AT_ONCE_ELEMENTS:
        return sum_at_once(values, rank, size, peers)
    if _by_blocks(values.numel(), size):
        return BlockSum(values, rank, size, peers).rest()
    return threads.start(RingSum(values, rank, size, peers).finish)


def rounds_of_sum(elements: int, ranks: int) -> int:
    """Return how many messages of such a sum must wait for one another."""
    if elements <= AT_ONCE_ELEMENTS:
        return 1
    return 2 if _by_blocks(elements, ranks) else 2 * (ranks - 1)


def _by_blocks(elements: int, ranks: int) -> bool:
    return elements <= ranks * SEGMENT_ELEMENTS
