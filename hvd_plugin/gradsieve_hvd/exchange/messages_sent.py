"""Which messages a rank sends by each path, and how large: a simulation without gradients.

Everything follows from how the supports of the ranks overlap: blocks of a ring grow with their union.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gradsieve.codec import ValueDtype, estimated_bytes

MOST_RANKS = 256


@dataclass(frozen=True)
class Supports:
    """Each rank picks ``entries`` of ``elements`` positions, evenly from ``hot`` that all share **(r)**.

    Independent supports pick from all positions. Those of real gradients overlap: they pick from fewer.
    """

    elements: float
    entries: float
    hot: float

    @classmethod
    def independent(cls, elements: float, entries: float) -> Supports:
        """Return supports that overlap by chance only."""
        return cls(elements, entries, elements)

    @classmethod
    def fitted(cls, elements: float, entries: float, ranks: int, union: float) -> Supports:
        """Return supports of which ``ranks`` have ``union`` positions together; as many ranks as can be had.

        union: between ``entries``, all alike, and what independent supports have; limited to that.
        """
        low, high = entries, float(elements)
        for _ in range(60):  # halves of an interval: to the last bit of a float
            middle = (low + high) / 2
            low, high = (
                (middle, high) if cls(elements, entries, middle).union(ranks) < union else (low, middle)
            )
        return cls(elements, entries, high)

    def union(self, ranks: int) -> float:
        """Return how many positions so many ranks have together."""
        return self.hot * (1 - (1 - self.entries / self.hot) ** ranks) if self.entries else 0.0


@dataclass(frozen=True)
class Messages:
    """``times`` messages, each with ``entries`` of a block of ``elements``."""

    elements: float
    entries: float
    times: int = 1


Path = Callable[[Supports, int, "float | None"], Iterable[Messages]]
"""Given supports, the number of ranks, and how many entries the total may have, returns what a rank sends."""


def allgather(supports: Supports, ranks: int, most: float | None = None) -> list[Messages]:  # noqa: ARG001
    """Return what `AllgatherExchange` sends: the payloads of all but one, handed on. It knows no bound."""
    return [Messages(supports.elements, supports.entries, ranks - 1)]


def ring(supports: Supports, ranks: int, most: float | None = None) -> list[Messages]:
    """Return what `RingExchange` sends.

    In round s of the reduce-scatter a block with the union of s supports, in the all-gather those with all:
    ``d / P [sum over s = 1 .. P - 1 of 1 - (1 - r)^s + (P - 1)(1 - (1 - r)^P)]`` entries, if supports are
    independent.
    """
    block = supports.elements / ranks
    reducing = [Messages(block, _kept(supports, step, most) / ranks) for step in range(1, ranks)]
    return [*reducing, Messages(block, _kept(supports, ranks, most) / ranks, ranks - 1)]


def scatter(supports: Supports, ranks: int, most: float | None = None) -> list[Messages]:
    """Return what `ScatterExchange` sends with balanced blocks: own entries, then sums; no counting."""
    block = supports.elements / ranks
    return [
        Messages(block, supports.entries / ranks, ranks - 1),
        Messages(block, _kept(supports, ranks, most) / ranks, ranks - 1),
    ]


PATHS: dict[str, Path] = {"allgather": allgather, "ring": ring, "scatter": scatter}


def entries_of(messages: Iterable[Messages]) -> float:
    """Return how many entries messages have together."""
    return sum(each.times * each.entries for each in messages)


def bytes_of(messages: Iterable[Messages], value_dtype: ValueDtype = "float32") -> int:
    """Return about how many bytes messages have together, headers included."""
    return sum(
        each.times * estimated_bytes(round(each.elements), round(each.entries), value_dtype)
        for each in messages
    )


def dense_bytes(elements: float, ranks: int, bytes_per_value: int = 4) -> float:
    """Return what a bandwidth-optimal dense all-reduce sends: 2 d (P - 1) / P values."""
    return 2 * bytes_per_value * elements * (ranks - 1) / ranks


def crossing(sends: Callable[[int], float], others_send: Callable[[int], float]) -> int | None:
    """Return the number of ranks, 2 to 256, from which on one path sends less than another.

    None if it does not with 256 ranks. Both are given a number of ranks, and return bytes.
    """
    least = None
    for ranks in range(MOST_RANKS, 1, -1):
        if sends(ranks) >= others_send(ranks):
            break
        least = ranks
    return least


def _kept(supports: Supports, ranks: int, most: float | None) -> float:
    union = supports.union(ranks)
    return union if most is None else min(union, most)
