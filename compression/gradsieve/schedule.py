"""How the density changes while training starts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradsieve.density import is_count, is_fraction
from gradsieve.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class DensityWarmup:
    """Exponential decay of the density from ``start`` to the target (Deep Gradient Compression, section 3.3).

    Early gradients change direction quickly; sending more of them keeps the residual from going stale.

    start: density of step 0, in (0, 1]. 0.25 is the paper's.
    steps: optimizer steps until the target is reached, at least 1; usually those of the first epochs.

    Raises ConfigurationError if a field is out of range.
    """

    start: float = 0.25
    steps: int

    def __post_init__(self) -> None:
        if not is_fraction(self.start):
            raise ConfigurationError(f"DensityWarmup: start={self.start!r} must be a number in (0, 1]")
        if not is_count(self.steps, 1):
            raise ConfigurationError(f"DensityWarmup: steps={self.steps!r} must be an integer of at least 1")

    def density_at(self, step: int, target: float) -> float:
        """Return ``start * (target / start) ** (step / steps)``, and ``target`` from ``steps`` on."""
        if step >= self.steps:
            return target
        return float(self.start * math.pow(target / self.start, max(step, 0) / self.steps))
