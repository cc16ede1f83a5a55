"""What a coordinator expects of other plans, believed as far as measurements allow."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

from gradsieve_operator.spec.values import MODES

_LONGEST: Final = 1e6
_LARGEST_FACTOR: Final = 1e6
_MOST_DENSITIES: Final = 32
_ROUNDING: Final = 1.001


@dataclass(frozen=True, slots=True)
class Promised:
    """Seconds of a step under other plans.

    Attributes:
        computing: by mode, without the exchange; a mode that is not there is not foretold.
        exchange: factors to the present density, ascending, with the seconds of an exchange each; empty where
            it is not foretold.
    """

    computing: Mapping[str, float] = field(default_factory=dict)
    exchange: tuple[tuple[float, float], ...] = ()

    def exchange_seconds(self, factor: float) -> float | None:
        """Return the seconds of an exchange at ``factor`` times the present density; None if not foretold.

        In between on a straight line, as bytes nearly are; beyond the last densities as at them.
        """
        if not self.exchange:
            return None
        (first, least), (last, most) = self.exchange[0], self.exchange[-1]
        if not first < factor < last:
            return least if factor <= first else most
        for (low, before), (high, after) in itertools.pairwise(self.exchange):
            if factor <= high:
                return before + (after - before) * (factor - low) / (high - low)
        return most


def read_promised(found: Any, harmonic: float, delay: float) -> Promised:
    """Read what a coordinator serves as ``expected``. What cannot be, or contradicts what was measured, is
    left out with all of its kind: the operator then expects what it can work out itself.

    1. No mode computes faster than all ranks at their own rates, with nobody waiting.
    2. More entries take no less time than fewer, and as many as now take what they take now.

    Args:
        found: as it is served; None of an earlier version.
        harmonic: see `Work`.
        delay: seconds of a present exchange.
    """
    if not isinstance(found, Mapping):
        return Promised()
    computing = _computing(found.get("computingSeconds"), harmonic)
    return Promised(computing, _exchange(found.get("exchange"), delay))


def _computing(found: Any, harmonic: float) -> dict[str, float]:
    if not isinstance(found, Mapping):
        return {}
    known = {mode: found[mode] for mode in MODES if mode in found}
    sound = all(_is_number(each, _LONGEST) and each * _ROUNDING >= harmonic for each in known.values())
    return {mode: float(seconds) for mode, seconds in known.items()} if sound else {}


def _exchange(found: Any, delay: float) -> tuple[tuple[float, float], ...]:
    if not isinstance(found, Sequence) or not 0 < len(found) <= _MOST_DENSITIES:
        return ()
    told = [pair for pair in map(_density, found) if pair is not None]
    if len(told) < len(found) or any(
        low[0] >= high[0] or low[1] > high[1] for low, high in itertools.pairwise(told)
    ):
        return ()
    now = next((seconds for factor, seconds in told if factor == 1), math.inf)
    return tuple(told) if max(now, delay) <= _ROUNDING * min(now, delay) else ()


def _density(found: Any) -> tuple[float, float] | None:
    """Return a factor and seconds; None for anything else."""
    if not isinstance(found, Mapping):
        return None
    factor, seconds = found.get("factor"), found.get("seconds")
    if not (_is_number(factor, _LARGEST_FACTOR) and _is_number(seconds, _LONGEST)):
        return None
    return float(factor), float(seconds)


def _is_number(value: Any, most: float) -> TypeGuard[float]:
    return type(value) in (int, float) and 0 <= value <= most
