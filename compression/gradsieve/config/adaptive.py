"""Rules whose density follows the training: by layer (method A), by batch and network (method B)."""

from __future__ import annotations

import dataclasses
from fnmatch import fnmatchcase
from typing import ClassVar

from gradsieve.config.base import (
    CompressionConfig,
    is_positive,
    require,
    require_band,
    require_bounds,
)
from gradsieve.density import is_count, is_number
from gradsieve.losses import DEFAULT_RECORDER, LossRecorder
from gradsieve.parameter_names import unwrapped
from gradsieve.policies import ImportancePolicy, LayeredPolicy, Policy
from gradsieve.selection import Selector
from gradsieve.selectors import LaplaceSelector, LayeredSelector


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayeredConfig(CompressionConfig):
    """A density and a threshold per layer, which follow the energy that the layer keeps (method A).

    density: what every layer starts at, and the most that the model's mean, weighted by elements, may be.
    bounds: lowest and highest density of a layer, after the warm-up.
    layer_min_elements: size thresholds of layers by name: pairs of a pattern (``*`` and ``?`` as in file
        names) and a number that takes the place of ``min_elements``; the first that matches holds.
    band: accepted number of entries as multiples of k, lowest and highest.
    reanchor_steps: steps after which a layer's threshold is set to the exact k-th magnitude, layers by turns.
        50 **(r)**.
    adapt_steps: steps after which densities are decided anew. 100.
    dead_band: by how much, as a fraction, the kept energy must leave its usual level to change a density.
        0.1 **(r)**: one change of a density moves it by less.
    """

    algorithm: ClassVar[str] = "layered"

    bounds: tuple[float, float] = (0.001, 0.1)
    layer_min_elements: tuple[tuple[str, int], ...] = ()
    band: tuple[float, float] = (0.8, 1.25)
    reanchor_steps: int = 50
    adapt_steps: int = 100
    dead_band: float = 0.1

    def __post_init__(self) -> None:
        CompressionConfig.__post_init__(self)
        require_bounds(self.bounds, self)
        allowed = "a tuple of pairs of a name's pattern and an integer of at least 0"
        require(_are_overrides(self.layer_min_elements), self, "layer_min_elements", allowed)
        require_band(self.band, self)
        require(is_count(self.reanchor_steps, 1), self, "reanchor_steps", "an integer of at least 1")
        require(is_count(self.adapt_steps, 1), self, "adapt_steps", "an integer of at least 1")
        holds = is_number(self.dead_band) and 0 <= self.dead_band < 1
        require(holds, self, "dead_band", "a number in [0, 1)")

    def compresses(self, name: str, elements: int) -> bool:
        """Return whether a tensor of that name and size is compressed; else it is sent dense."""
        names = {name, unwrapped(name)}  # a pattern shall match whether or not the model is compiled
        matching = (
            least
            for pattern, least in self.layer_min_elements
            if any(fnmatchcase(each, pattern) for each in names)
        )
        return elements >= next(matching, self.min_elements)

    def selector(self) -> Selector:
        """Return the rule with a threshold that steers itself."""
        return LayeredSelector(self.band)

    def _own_policy(self) -> Policy:
        return LayeredPolicy(
            self.density,
            bounds=self.bounds,
            dead_band=self.dead_band,
            adapt_steps=self.adapt_steps,
            reanchor_steps=self.reanchor_steps,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ImportanceConfig(CompressionConfig):
    """One density for all layers, which follows the batches' importance and the network's state (method B).

    density: that of a batch of usual importance on the network as it was at first.
    bounds: lowest and highest density, after the warm-up.
    loss_power: how much importance matters: 0 not at all, 1 in proportion.
    network_power: how much the network's delay matters, in the same way.
    period: steps from one decision to the next. 10 **(r)**.
    band: accepted number of entries as multiples of k, lowest and highest.
    recorder: where `gradsieve.cross_entropy` puts the sample losses. Give two models in one process a
        recorder each. It is this process's own and not compared across ranks.
    """

    algorithm: ClassVar[str] = "importance"

    bounds: tuple[float, float] = (0.001, 0.25)
    loss_power: float = 1.0
    network_power: float = 1.0
    period: int = 10
    band: tuple[float, float] = (0.8, 1.25)
    recorder: LossRecorder = dataclasses.field(default=DEFAULT_RECORDER, compare=False, repr=False)

    def __post_init__(self) -> None:
        CompressionConfig.__post_init__(self)
        require_bounds(self.bounds, self)
        for field in ("loss_power", "network_power"):
            value = getattr(self, field)
            require(value == 0 or is_positive(value), self, field, "a number of at least 0")
        require(is_count(self.period, 1), self, "period", "an integer of at least 1")
        require_band(self.band, self)
        require(isinstance(self.recorder, LossRecorder), self, "recorder", "a LossRecorder")

    def selector(self) -> Selector:
        """Return the Laplace rule, whose threshold follows any density."""
        return LaplaceSelector(self.band)

    def _own_policy(self) -> Policy:
        return ImportancePolicy(
            self.density,
            bounds=self.bounds,
            loss_power=self.loss_power,
            network_power=self.network_power,
            period=self.period,
            recorder=self.recorder,
        )


def _are_overrides(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and is_count(pair[1], 0)
        for pair in value
    )
