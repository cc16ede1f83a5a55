"""One layer that is compressed by the Laplace rule and watched meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradsieve import LaplaceConfig, Residual
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


class WatchedLayer:
    """One layer's residual, threshold and rule."""

    def __init__(self, name: str, elements: int, config: LaplaceConfig) -> None:
        self.name = name
        self._density = config.density
        self._selector = config.selector()
        self._residual = Residual(elements)
        self._threshold: float | None = None

    def exchange(self, gradient: Tensor, step: int) -> tuple[Tensor, Tensor, LayerStep]:
        """Return what arrives (fp32, the gradient's shape, zero where nothing was sent), the accumulated
        gradient (fp32 [N]) and what was seen; the gradient is not mutated.

        The cold selection is made of a copy and thrown away, so that watching changes nothing.
        """
        density = self._density
        accumulated = CountedSum(self._residual.begin(gradient))
        before = accumulated.tensor().clone()
        cold = CountedSum(as_accumulated(before))
        self._selector.select(cold, density, None)
        selection = self._selector.select(accumulated, density, self._threshold)
        self._residual.keep(selection, selection.values)
        self._residual.commit()
        record = LayerStep(
            layer=self.name,
            step=step,
            elements=before.numel(),
            wanted=entries_to_keep(density, before.numel()),
            kept=selection.indices.numel(),
            threshold=selection.threshold,
            cold=cold.asked,
            warm=None if self._threshold is None else accumulated.asked,
        )
        self._threshold = selection.threshold
        arrived = torch.zeros_like(before)
        arrived[selection.indices] = selection.values
        return arrived.view(gradient.shape), before, record
