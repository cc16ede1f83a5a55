"""A fixed density whose payloads are as many bytes as those of another training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

TOLERANCE = 0.02  # of the bytes
_MOST_TRAININGS = 4


class Sent(Protocol):
    """Anything that has sent compressed tensors."""

    @property
    def payload_bytes(self) -> float:
        """In all, without what travelled dense: that is the same for all, and would hide differences."""


Result = TypeVar("Result", bound=Sent)


def at_equal_bytes(
    wanted: float, density: float, first: Result, train: Callable[[float], Result]
) -> tuple[float, Result]:
    """Return a density, and what training at it gave, whose payload bytes are ``wanted`` within
    2 %.

    1. Begin with ``first``, which is what training at ``density`` gave.
    2. While the bytes are off, scale the density in proportion; from the second training on, follow the line
       through the last two, as some bytes (headers, warm-up) do not depend on the density.
    3. After four trainings return the nearest.
    """
    tried = [(density, first)]
    while abs(tried[-1][1].payload_bytes - wanted) > TOLERANCE * wanted and len(tried) <= _MOST_TRAININGS:
        following = _next_density(wanted, [(each, result.payload_bytes) for each, result in tried])
        tried.append((following, train(following)))
    return min(tried, key=lambda each: abs(each[1].payload_bytes - wanted))


def _next_density(wanted: float, tried: list[tuple[float, float]]) -> float:
    (before, bytes_before), (last, bytes_last) = (0.0, 0.0) if len(tried) == 1 else tried[-2], tried[-1]
    slope = (bytes_last - bytes_before) / (last - before)
    return min(max(last + (wanted - bytes_last) / slope, last / 4), 4 * last, 1.0)
