"""Sets of whole numbers that mostly lie side by side: places in an epoch's order."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable

Pairs = tuple[tuple[int, int], ...]
"""Ranges, increasing: the first place of each, and the one behind its last."""


def count(pairs: Iterable[tuple[int, int]]) -> int:
    """Return how many places ranges have."""
    return sum(stop - start for start, stop in pairs)


class Ranges:
    """A set of places, kept as ranges that do not touch each other.

    Args:
        pairs: what it begins with.

    Raises:
        ValueError: a place is in two of them.
    """

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._pairs: list[tuple[int, int]] = []
        self.add(pairs)

    def __len__(self) -> int:
        """Return the number of places."""
        return count(self._pairs)

    @property
    def pairs(self) -> Pairs:
        """The ranges."""
        return tuple(self._pairs)

    def add(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Add places.

        Raises:
            ValueError: one is there already, or a range has none.
        """
        for start, stop in pairs:
            at = bisect(self._pairs, (start, stop))
            before, behind = self._pairs[max(at - 1, 0) : at], self._pairs[at : at + 1]
            overlap = any(end > start for _, end in before) or any(begin < stop for begin, _ in behind)
            if overlap or not 0 <= start < stop:
                raise ValueError(f"places {start} to {stop} cannot join {self._pairs}")
            touched = [each for each in (*before, *behind) if start in each or stop in each]
            first = at - 1 if before and before[0] in touched else at
            edges = [start, stop, *(edge for each in touched for edge in each)]
            self._pairs[first : first + len(touched)] = [(min(edges), max(edges))]

    def take(self, places: int) -> Pairs:
        """Remove the lowest places, so many or all, and return them."""
        taken: list[tuple[int, int]] = []
        while places and self._pairs:
            start, stop = self._pairs.pop(0)
            cut = min(stop, start + places)
            taken.append((start, cut))
            places -= cut - start
            if cut < stop:
                self._pairs.insert(0, (cut, stop))
        return tuple(taken)

    def between(self, first: int, last: int) -> Pairs:
        """Return the places from the ``first`` of them, counted from 0, to the one before the ``last``."""
        rest = Ranges(self._pairs)
        rest.take(first)
        return rest.take(last - first)

    def without(self, size: int) -> Ranges:
        """Return those of the first ``size`` places that are not in this set."""
        edges = [0, *(edge for pair in self._pairs for edge in pair), size]
        return Ranges((a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b)
