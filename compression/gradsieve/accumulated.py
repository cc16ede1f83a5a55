"""The accumulated gradient as the selection rules see it, whatever computes it.

A rule asks which elements reach a magnitude and looks at the answer; it never sees all N elements. So a
kernel may add the residual in the same pass in which it lists what the rule asks for first, and where it
can, answers the next question from what it noted meanwhile.

Magnitudes are given as their bit patterns (:mod:`gradsieve.kernels.magnitude`).
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from gradsieve.selection import Selection


class Candidates(Protocol):
    """Some elements, by increasing position; valid until an accumulated gradient is asked in this thread."""

    @property
    def count(self) -> int:
        """How many they are."""
        ...

    def count_reaching(self, magnitude_bits: int) -> int:
        """Return how many of them reach ``magnitude_bits``."""
        ...

    def lowest(self) -> int:
        """Return their smallest pattern, 0 if there are none."""
        ...

    def nth_largest(self, number: int) -> int:
        """Return the ``number``-th largest pattern, 1 <= number <= count."""
        ...

    def select(self, magnitude_bits: int, at_most: int | None = None) -> Selection:
        """Return those that reach ``magnitude_bits`` as a selection with that threshold.

        At most ``at_most``, if given: then of those *at* the pattern only the first; above it there must be
        no more than that.
        """
        ...


class Accumulated(Protocol):
    """a = gradient * scale + residual (fp32 [N]), which may not have been added up yet."""

    @property
    def elements(self) -> int:
        """N."""
        ...

    def tensor(self) -> Tensor:
        """Return a itself (fp32 [N]): a buffer, not to be mutated."""
        ...

    def reaching(self, magnitude_bits: int, margin: int = 0, *, likely: bool = False) -> Candidates:
        """Return the elements that reach ``magnitude_bits``.

        Two hints, which change the time only. ``margin``: the next question may be about patterns as much
        lower. ``likely``: these will probably be the selection.
        """
        ...

    def subtract_sent(self, selection: Selection) -> None:
        """Set the selected elements, which are finite, to 0 in place."""
        ...

    def mean_magnitude(self) -> float:
        """Return mean |a|, the same for every order of summation; infinity if an element is not finite."""
        ...

    def group_top_k(self, group_size: int, per_group: int, in_last: int) -> Selection:
        """Return the ``per_group`` largest of every ``group_size`` elements, ties by lowest index.

        The last group, if shorter, gives ``in_last``. The threshold is the smallest magnitude selected.
        """
        ...
