"""What a selection rule asks of an accumulated gradient, counted.

The counters stand between the rule and whatever answers it; every answer is handed through unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gradsieve.accumulated import Accumulated, Candidates
from gradsieve.selection import Selection


@dataclass(slots=True)
class Questions:
    """What one selection asked.

    counts: how often it asked how many elements reach a magnitude, of all N or of those listed before.
    passes: how often it asked something of all N elements. A kernel's own passes may differ: it answers some
        questions from what it noted before, and may need several for the mean.
    """

    counts: int = 0
    passes: int = 0


class CountedCandidates:
    """See :class:`gradsieve.accumulated.Candidates`."""

    def __init__(self, inner: Candidates, asked: Questions) -> None:
        self._inner = inner
        self._asked = asked

    @property
    def count(self) -> int:
        """How many they are; known from listing them."""
        return self._inner.count

    def count_reaching(self, magnitude_bits: int) -> int:
        """Return how many of them reach ``magnitude_bits``: a count."""
        self._asked.counts += 1
        return self._inner.count_reaching(magnitude_bits)

    def lowest(self) -> int:
        """Return their smallest magnitude_bits."""
        return self._inner.lowest()

    def nth_largest(self, number: int) -> int:
        """Return the ``number``-th largest magnitude_bits."""
        return self._inner.nth_largest(number)

    def select(self, magnitude_bits: int, at_most: int | None = None) -> Selection:
        """Return those that reach ``magnitude_bits``."""
        return self._inner.select(magnitude_bits, at_most)


class CountedSum:
    """See :class:`gradsieve.accumulated.Accumulated`; ``asked`` holds what has been asked so far."""

    def __init__(self, inner: Accumulated) -> None:
        self._inner = inner
        self.asked = Questions()

    @property
    def elements(self) -> int:
        """N."""
        return self._inner.elements

    def tensor(self) -> Tensor:
        """Return a itself."""
        return self._inner.tensor()

    def reaching(self, magnitude_bits: int, margin: int = 0, *, likely: bool = False) -> CountedCandidates:
        """Return the elements that reach ``magnitude_bits``: a count and a pass."""
        self.asked.counts += 1
        self.asked.passes += 1
        return CountedCandidates(self._inner.reaching(magnitude_bits, margin, likely=likely), self.asked)

    def subtract_sent(self, selection: Selection) -> None:
        """Set the selected elements to 0; touches K elements."""
        self._inner.subtract_sent(selection)

    def mean_magnitude(self) -> float:
        """Return mean |a|: a pass."""
        self.asked.passes += 1
        return self._inner.mean_magnitude()

    def group_top_k(self, group_size: int, per_group: int, in_last: int) -> Selection:
        """Return the ``per_group`` largest of every group: a pass."""
        self.asked.passes += 1
        return self._inner.group_top_k(group_size, per_group, in_last)
