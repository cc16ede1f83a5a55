"""A rank that compresses by the Laplace rule and is watched meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradsieve import LaplaceConfig, Selection, Selector
from gradsieve.accumulated import Accumulated
from gradsieve.density import entries_to_keep
from gradsieve.kernels import as_accumulated
from gradsieve_hvd.experiments.simulate import SimulatedRank

from .counting import CountedSum, Questions


@dataclass(frozen=True, slots=True)
class LayerStep:
    """What the rule did with one layer's accumulated gradient in one step.

    elements, wanted: N and k. kept: entries sent. threshold: smallest magnitude that passed.
    cold: what the rule asks without the last step's threshold. warm: what it asked with it; None in the first
    step, which has none.
    """

    layer: str
    step: int
    elements: int
    wanted: int
    kept: int
    threshold: float
    cold: Questions
    warm: Questions | None

    @property
    def kept_ratio(self) -> float:
        """Entries sent, as a multiple of k."""
        return self.kept / self.wanted


class _WatchedSelector:
    """The rule, seen at its work.

    before: the last accumulated gradient (fp32 [N]), a copy. cold, warm: see `LayerStep`.
    """

    def __init__(self, inner: Selector) -> None:
        self._inner = inner
        self.before = torch.empty(0)
        self.cold = Questions()
        self.warm: Questions | None = None

    def select(
        self, accumulated: Accumulated | Tensor, density: float, previous_threshold: float | None
    ) -> Selection:
        """Select as the rule does; the cold selection is made of the copy and thrown away."""
        inner = as_accumulated(accumulated) if isinstance(accumulated, Tensor) else accumulated
        self.before = inner.tensor().clone()
        cold, counted = CountedSum(as_accumulated(self.before)), CountedSum(inner)
        self._inner.select(cold, density, None)
        selection = self._inner.select(counted, density, previous_threshold)
        self.cold, self.warm = cold.asked, None if previous_threshold is None else counted.asked
        return selection


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _WatchedConfig(LaplaceConfig):
    """The rule's settings, of which each layer gets a selector that is seen at its work.

    made: these selectors, in the order in which layers began.
    """

    made: list[_WatchedSelector] = dataclasses.field(default_factory=list, compare=False, repr=False)

    def selector(self) -> Selector:
        """See `CompressionConfig`."""
        self.made.append(_WatchedSelector(LaplaceConfig.selector(self)))
        return self.made[-1]


@dataclass(frozen=True, slots=True)
class WatchedStep:
    """What one step did.

    By name: arrived, what the optimizer gets, in the gradients' shapes; accumulated, the compressed layers'
    sums (fp32 [N]) before anything was sent. seen: of these layers.
    """

    arrived: dict[str, Tensor]
    accumulated: dict[str, Tensor]
    seen: list[LayerStep]


class WatchedRank:
    """A rank that is alone, whose rule is watched, which changes nothing of what is sent."""

    def __init__(self, model: nn.Module, config: LaplaceConfig) -> None:
        settings = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
        self._config = _WatchedConfig(**settings)
        self._rank = SimulatedRank(self._config, model)

    def exchange(self, gradients: Mapping[str, Tensor], step: int) -> WatchedStep:
        """Send gradients, by name, to nobody, and return what comes of it; they are not mutated."""
        arrived = self._rank.receive(self._rank.send(gradients))
        # States, and selectors with them, are made when layers are first sent.
        watched = list(zip(self._rank.layers.items(), self._config.made, strict=True))
        records = [
            LayerStep(
                layer=name,
                step=step,
                elements=selector.before.numel(),
                wanted=entries_to_keep(layer.density, selector.before.numel()),
                kept=layer.kept,
                threshold=layer.threshold or 0.0,
                cold=selector.cold,
                warm=selector.warm,
            )
            for (name, layer), selector in watched
        ]
        return WatchedStep(arrived, {name: each.before for (name, _), each in watched}, records)
