"""Method A, step 4: every layer's density follows the energy that its selections keep.

Source: ALGC (Wang, Zhu, J. Hubei Minzu Univ. (Nat. Sci.) 2025(1):34-40), of which only the abstract is
public; the gain follows GraVAC. What is marked **(r)** is a reconstruction.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gradsieve.policies import state as saved
from gradsieve.policies.base import Decision, LayerPolicy, Outcome

GROWTH = (
    1.25  # (r) one change of a density; moves q by less than the default dead band, so it cannot undo itself
)
HISTORY = 50  # (r) measurements whose median is a layer's usual gain
GOLDEN = (math.sqrt(5) - 1) / 2  # multiples of it, modulo 1, lie evenly however many there are
MEASUREMENTS = 10  # (r) per window: few, for each costs a pass over the layer


def adapted_density(density: float, gain: float, usual: float, dead_band: float) -> float:
    """Return the density after a window: higher if the layer kept less energy than usual, lower if more.

    Relative to the layer's own usual gain, because absolute levels differ between layers and densities: a
    rule such as "double below 3/4" runs away to the upper bound **(r)**.
    """
    if gain < usual * (1 - dead_band):
        return density * GROWTH
    if gain > usual * (1 + dead_band):
        return density / GROWTH
    return density


def bounded_densities(
    densities: Sequence[float], elements: Sequence[int], mean: float, bounds: tuple[float, float]
) -> list[float]:
    """Return the densities within ``bounds`` and, weighted by ``elements``, with a mean of at most ``mean``.

    1. Clip each to the bounds.
    2. While the mean is too high, scale those above the lower bound down by one factor; one that would fall
       below the bound stays at it, and the others make up for it in the next round.

    ``mean`` must not be below the lower bound.
    """
    lowest, highest = bounds
    result = [min(max(density, lowest), highest) for density in densities]
    budget = mean * sum(elements)
    for _ in densities:
        spent = sum(density * n for density, n in zip(result, elements, strict=True))
        floor = sum(lowest * n for density, n in zip(result, elements, strict=True) if density == lowest)
        if spent <= budget or spent == floor:
            break
        factor = max(budget - floor, 0.0) / (spent - floor)
        result = [max(density * factor, lowest) for density in result]
    return result


def anchor_turn(number: int, reanchor_steps: int) -> int:
    """Return after which step of every ``reanchor_steps`` the layer of that number, from 0, is anchored.

    No step has more than twice its share, however many layers there are.
    """
    return int(number * GOLDEN % 1 * reanchor_steps)


class LayeredPolicy:
    """A density per layer, adapted every ``adapt_steps`` steps, their weighted mean at most ``density``.

    1. Every layer starts at ``density``.
    2. Each layer measures its kept-energy gain ten times in ``adapt_steps`` steps, layers by turns **(r)**.
    3. At the end of such a window the median of its gains is compared with the median of the windows before:
       see `adapted_density`.
    4. `bounded_densities` keeps every layer within ``bounds`` and the model's mean at most ``density``.
    5. Every ``reanchor_steps`` steps each layer selects without its threshold; all in the first step, by
       turns afterwards **(r)**: all at once, that step took five times as long as the others.

    A rank decides by its own gradients; ranks may come to different densities.
    """

    def __init__(
        self,
        density: float,
        *,
        bounds: tuple[float, float],
        dead_band: float,
        adapt_steps: int,
        reanchor_steps: int,
    ) -> None:
        self._density = density
        self._bounds = bounds
        self._dead_band = dead_band
        self._adapt_steps = adapt_steps
        self._reanchor_steps = reanchor_steps
        self._layers: dict[str, _Layer] = {}
        self._steps = 0

    @property
    def times_exchanges(self) -> bool:
        """No."""
        return False

    def layer(self, name: str, elements: int) -> LayerPolicy:
        """See :class:`gradsieve.policies.base.Policy`."""
        measure_steps = max(1, self._adapt_steps // MEASUREMENTS)
        turn = anchor_turn(len(self._layers), self._reanchor_steps)
        self._layers[name] = _Layer(elements, self._density, self._reanchor_steps, turn, measure_steps)
        return self._layers[name]

    def observe_exchange(self, seconds: float, size: int) -> None:
        """Do nothing: this method looks at gradients only."""

    def commit(self) -> None:
        """Count the step, and adapt all layers together when a window ends."""
        self._steps += 1
        if self._steps % self._adapt_steps == 0:
            self._adapt()

    def rollback(self) -> None:
        """Do nothing: what is pending is in the layer parts."""

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"steps": int}``; densities and gains are in the layers' states."""
        return {"steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :class:`gradsieve.policies.base.Policy`."""
        saved.require_fields(state, "steps")
        self._steps = saved.count(state, "steps")

    def _adapt(self) -> None:
        layers = list(self._layers.values())
        wanted = [layer.close_window(self._dead_band) for layer in layers]
        elements = [layer.elements for layer in layers]
        bounded = bounded_densities(wanted, elements, self._density, self._bounds)
        for layer, density in zip(layers, bounded, strict=True):
            layer.density = density


class _Layer:
    """density: in force. gains: of the window under way. history: of the windows before. anchor_turn: see
    `anchor_turn`; saved, as layers may come in another order to a training that is resumed.
    """

    def __init__(
        self, elements: int, density: float, reanchor_steps: int, anchor_turn: int, measure_steps: int
    ) -> None:
        self.elements = elements
        self.density = density
        self.gains: list[float] = []
        self.history: list[float] = []
        self.anchor_turn = anchor_turn
        self._reanchor_steps = reanchor_steps
        self._measure_steps = measure_steps
        self._observed: float | None = None

    def decide(self, step: int) -> Decision:
        since_turn = step - self.anchor_turn
        refresh_threshold = step == 0 or since_turn % self._reanchor_steps == 0
        return Decision(self.density, refresh_threshold, measure=since_turn % self._measure_steps == 0)

    def observe(self, outcome: Outcome) -> None:
        self._observed = outcome.gain

    def commit(self) -> None:
        if self._observed is not None:
            self.gains.append(self._observed)
        self._observed = None

    def rollback(self) -> None:
        self._observed = None

    def close_window(self, dead_band: float) -> float:
        """Return the density that this layer wants, and begin a new window."""
        wanted = self.density
        if self.gains and self.history:
            gain, usual = statistics.median(self.gains), statistics.median(self.history)
            wanted = adapted_density(self.density, gain, usual, dead_band)
        self.history = [*self.history, *self.gains][-HISTORY:]
        self.gains = []
        return wanted

    def state_dict(self) -> dict[str, Any]:
        return {
            "density": self.density,
            "gains": list(self.gains),
            "history": list(self.history),
            "anchor_turn": self.anchor_turn,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if isinstance(state, Mapping):
            state = {"anchor_turn": self.anchor_turn, **state}  # version 0.1.0 had none
        saved.require_fields(state, "density", "gains", "history", "anchor_turn")
        density = saved.fraction(state, "density")
        gains, history = saved.numbers(state, "gains", 0.0), saved.numbers(state, "history", 0.0)
        self.anchor_turn = saved.count(state, "anchor_turn")
        self.density, self.gains, self.history = density, gains, history
        self._observed = None
