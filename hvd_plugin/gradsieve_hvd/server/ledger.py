"""Where the gradients went that a shard was given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from gradsieve import Payload

from .release import Combined


@dataclass(slots=True)
class Ledger:
    """Signed sums over all entries, in float64: ``given = applied + gated + damped + discarded + waiting``,
    where ``waiting`` has been pushed and not been released yet. Exact as long as gradients are integers.
    """

    given: float = 0.0
    applied: float = 0.0
    gated: float = 0.0
    damped: float = 0.0
    discarded: float = 0.0

    def arrived(self, payload: Payload) -> None:
        """A push has brought this."""
        self.given += _sum(payload.values)

    def combined(self, combined: Combined) -> None:
        """A release was made."""
        self.applied += _sum(combined.applied)
        self.gated += _sum(combined.gated)
        self.damped += _sum(combined.damped)

    def dropped(self, payload: Payload) -> None:
        """A push is never applied."""
        self.discarded += _sum(payload.values)


def _sum(values: Tensor) -> float:
    return float(np.sum(values.float().numpy(), dtype=np.float64))  # a third of torch's time
