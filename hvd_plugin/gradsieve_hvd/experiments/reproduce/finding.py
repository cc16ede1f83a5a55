"""A paper's claim beside what was measured, and the verdict that follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rich.table import Table

Row = dict[str, Any]
Verdict = Literal["holds", "holds more strongly", "not here"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One statement of a paper, put to the test.

    says: the paper's words or number. condition: what was compared here. figure: measured, more is better;
    None if it could not be had (a target never reached). shown: the figure as people read it. holds_from,
    strongly_from: the figures from which the claim holds, and holds more strongly than claimed.
    """

    says: str
    condition: str
    figure: float | None
    shown: str
    holds_from: float
    strongly_from: float

    @property
    def verdict(self) -> Verdict:
        """What the figure says of the claim."""
        if self.figure is None or not self.figure >= self.holds_from:
            return "not here"
        return "holds more strongly" if self.figure >= self.strongly_from else "holds"

    def row(self) -> Row:
        """Return everything as plain JSON values."""
        fields = ("says", "condition", "figure", "shown", "holds_from", "strongly_from", "verdict")
        return {name: getattr(self, name) for name in fields}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """What came of one paper's claims.

    setting: the conditions in a sentence. findings: a verdict each. tables: the figures behind them, for
    people; measurements: for programs.
    """

    setting: str
    findings: Sequence[Finding]
    tables: Sequence[Table]
    measurements: Mapping[str, Sequence[Row]] = field(default_factory=dict)


class Claim(Protocol):
    """A paper whose claims can be reproduced here."""

    @property
    def title(self) -> str:
        """What it is about."""
        ...

    @property
    def source(self) -> str:
        """Where it was published."""
        ...

    def reproduce(self, seeds: int, progress: Callable[[str], None], *, quick: bool) -> Reproduction:
        """Measure, and return what came of it; ``quick`` shows that everything works, not how well."""
        ...


def times(figure: float | None) -> str:
    """Return a ratio as people read it."""
    return "not reached" if figure is None else f"{figure:.2f} times"


def points(difference: float) -> str:
    """Return a difference of two fractions in points."""
    return f"{100 * difference:+.2f} points"
