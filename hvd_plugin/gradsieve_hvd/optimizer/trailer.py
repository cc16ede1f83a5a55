"""Numbers that ranks tell each other behind the elements of a bucket that travels whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

ORDERS: Final = 2
"""Numbers of rank 0's."""


class Trailer:
    """Some numbers that are summed with a bucket's elements, so that they cost no message.

    Each rank writes to places of its own, and zero to the others: [order ..., ready_0 ... ready_{P-1}].

    orders: what rank 0 has to say with the next exchange; others' are not looked at. heard: what it said with
    the last one, on all ranks the same, also where the wire rounds it; None if a rank refused.
    ready_seconds: how long each rank took until its bucket was ready, by rank; empty if one refused.
    """

    def __init__(self) -> None:
        self.orders: tuple[float, ...] = (0.0,) * ORDERS
        self.heard: tuple[float, ...] | None = None
        self.ready_seconds: dict[int, float] = {}

    def numbers(self, rank: int, ranks: int, ready_seconds: float) -> Tensor:
        """Return what this rank writes, fp32 [ORDERS + ranks]."""
        numbers = torch.zeros(ORDERS + ranks, dtype=torch.float32, device="cpu")
        if rank == 0:
            numbers[:ORDERS] = torch.tensor(self.orders)
        numbers[ORDERS + rank] = ready_seconds
        return numbers

    def read(self, sums: Tensor | None) -> None:
        """Take what came of it, fp32 [ORDERS + ranks]; None if a rank refused."""
        told: Sequence[float] = () if sums is None else sums.tolist()
        self.heard = tuple(told[:ORDERS]) or None
        self.ready_seconds = dict(enumerate(told[ORDERS:]))
