"""One layer that is compressed by the Laplace rule and watched meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradsieve import (
    LaplaceConfig,
    LayerCompressor,
    NonFiniteGradient,
    Refusal,
    Selection,
    Selector,
)
from gradsieve.accumulated import Accumulated
from gradsieve.density import entries_to_keep
from gradsieve.kernels import as_accumulated

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


class WatchedLayer:
    """One layer's compressor, whose rule is watched, which changes nothing of what is sent."""

    def __init__(self, name: str, elements: int, config: LaplaceConfig) -> None:
        self.name = name
        self._selector = _WatchedSelector(config.selector())
        self._compressor = LayerCompressor(config, elements, name=name, selector=self._selector)
        self._policy = config.policy().layer(name, elements)

    def exchange(self, gradient: Tensor, step: int) -> tuple[Tensor, Tensor, LayerStep]:
        """Return what arrives (fp32, the gradient's shape, zero where nothing was sent), the accumulated
        gradient (fp32 [N]) and what was seen; the gradient is not mutated.

        Raises:
            NonFiniteGradient: it holds NaN or infinity.
        """
        compressor, seen = self._compressor, self._selector
        decision = self._policy.decide(step)
        sent = compressor.select(gradient, decision)
        if isinstance(sent, Refusal):
            raise NonFiniteGradient(f"NaN or infinity in the gradient of '{self.name}' in step {step}")
        compressor.commit()
        record = LayerStep(
            layer=self.name,
            step=step,
            elements=sent.elements,
            wanted=entries_to_keep(decision.density, sent.elements),
            kept=sent.count,
            threshold=compressor.threshold or 0.0,
            cold=seen.cold,
            warm=seen.warm,
        )
        return sent.dense().view(gradient.shape), seen.before, record
