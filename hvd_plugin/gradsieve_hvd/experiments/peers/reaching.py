"""When a training is where another was after so many steps: targets and what is known of them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from gradsieve.errors import ConfigurationError

from .plan import Row

Point = tuple[int, float, float]
"""Steps, seconds, and the loss or accuracy."""


class Target(NamedTuple):
    """What trainings are to reach: a value, or what ``contender`` reaches with the same seed in ``steps``."""

    value: float | None
    contender: str = ""
    steps: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``2.6`` or ``dense@2000``.

        Raises:
            ConfigurationError: it is neither, or not finite.
        """
        contender, at, steps = text.partition("@")
        try:
            parsed = cls(None, contender, int(steps)) if at else cls(float(text))
        except ValueError:
            raise ConfigurationError(
                f"--until {text}: neither a number nor CONTENDER@STEPS, such as dense@2000"
            ) from None
        if parsed.value is not None and not math.isfinite(parsed.value):
            raise ConfigurationError(f"--until {text}: no training reaches it; give a finite number")
        return parsed

    def of(self, seed: int, found: Iterable[Row]) -> float:
        """Return what trainings of a seed are to reach, by the rows that found it out.

        Raises:
            ConfigurationError: it was found out after another number of steps.
        """
        if self.value is not None:
            return self.value
        row = next(row for row in found if row["seed"] == seed)
        if row["steps"] != self.steps:
            raise ConfigurationError(
                f"the file holds {self.contender} after {row['steps']} steps, not {self.steps}: take "
                "another file"
            )
        return float(row["until"])


def first_at(curve: Sequence[Point], target: float, *, rising: bool) -> int | None:
    """Return the place of the first point that is at the target; None if there is none.

    rising: the target is reached from below, as that of an accuracy.
    """
    sign = 1 if rising else -1
    return next((i for i, (_, _, value) in enumerate(curve) if sign * (value - target) >= 0), None)
