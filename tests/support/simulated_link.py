"""A shaped link under a virtual clock: a bucket of tokens that fills at the link's rate."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

MBIT = 1e6 / 8


@dataclass
class SimulatedLink:
    """rate: bytes per second. burst: bytes that pass at once. jitter: relative, of times."""

    rate: float
    start_up: float = 5e-4
    burst: int = 0
    jitter: float = 0.05
    dice: random.Random = field(default_factory=lambda: random.Random(0))
    tokens: float = 0.0

    def idle(self, seconds: float) -> None:
        self.tokens = min(self.tokens + seconds * self.rate, self.burst)

    def seconds(self, sent: float, rounds: int = 1) -> float:
        """Return how long an exchange takes."""
        held_up = max(sent - self.tokens, 0) / self.rate
        self.tokens = max(self.tokens - sent, 0)
        return (rounds * self.start_up + held_up) * (1 + self.jitter * self.dice.uniform(-1, 1))
