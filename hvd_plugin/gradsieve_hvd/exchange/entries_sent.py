"""How many entries a rank sends by each path, expected from density and number of ranks.

Supports are taken as independent; where they overlap, rings send less. Real payloads also have headers, and
are smaller where the codec packs values and positions.
"""

from __future__ import annotations

DENSE_BYTES = 4
"""Of one value; an entry takes as many, and those of its index."""


def dense_bytes(elements: int, ranks: int) -> float:
    """Return what a bandwidth-optimal dense all-reduce sends: 2 d (P - 1) / P values."""
    return 2 * DENSE_BYTES * elements * (ranks - 1) / ranks


def allgather_entries(elements: int, ranks: int, density: float) -> float:
    """Return (P - 1) k: payloads handed on around a ring."""
    return (ranks - 1) * density * elements


def ring_entries(elements: int, ranks: int, density: float) -> float:
    """Return what method C sends without a bound.

    d / P [sum over s = 1 .. P - 1 of 1 - (1 - r)^s + (P - 1)(1 - (1 - r)^P)]: in the reduce-scatter the block
    sent in round s is the union of s supports, in the all-gather that of all.
    """
    reducing = sum(1 - (1 - density) ** step for step in range(1, ranks))
    gathering = (ranks - 1) * (1 - (1 - density) ** ranks)
    return elements / ranks * (reducing + gathering)


def bounded_entries(most: int, ranks: int) -> float:
    """Return what a ring, or a scatter with balanced blocks, sends at the most: 2 k (P - 1) / P."""
    return 2 * most * (ranks - 1) / ranks
