"""Who competes in selecting: each step adds the residual, selects, and leaves the rest.

The simple ones are what one finds in scripts, in as few passes of torch as they allow. They stop at indices
and values; ours go on to the finished payload.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from gradsieve import codec
from gradsieve.config import ALGORITHMS, CompressionConfig
from gradsieve_hvd.engine.compressed_layer import CompressedLayer

_SAMPLE = 100  # DGC's: one element of a hundred
_REUSED_STEPS = 50
_GENERATOR_SEED = 5


def sampled_top_k(magnitudes: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return the positions of about ``count`` large magnitudes (int64, any order), never more.

    1. A threshold: the top-k of a sample of one element of a hundred.
    2. If more than ``count`` elements reach it, the top-k of these (section 3.1, hierarchical selection).
    """
    draws = max(1, magnitudes.numel() // _SAMPLE)
    sample = magnitudes[torch.randint(magnitudes.numel(), (draws,), generator=generator)]
    threshold = torch.topk(sample, max(1, count // _SAMPLE)).values[-1]
    positions = (magnitudes >= threshold).nonzero().flatten()
    if positions.numel() > count:
        positions = positions[torch.topk(magnitudes[positions], count, sorted=False).indices]
    return positions


class Contender:
    """A way to select with torch, with a residual of its own."""

    kernel = "torch"

    def __init__(self, elements: int, density: float) -> None:
        self.residual = torch.zeros(elements)
        self.count = max(1, round(density * elements))
        self.step_number = 0

    def sent(self, values: Tensor) -> Tensor:
        """Return the values among what ``step`` returned."""
        return values

    def select(self, accumulated: Tensor) -> Tensor:
        """Return the positions to send, in any order."""
        raise NotImplementedError

    def rest(self) -> Tensor:
        """Return what has not been sent."""
        return self.residual

    def step(self, gradient: Tensor) -> Tensor:
        """Take a gradient in and return the values that would be sent."""
        self.residual.add_(gradient)
        indices = self.select(self.residual)
        values = self.residual[indices]
        self.residual[indices] = 0
        self.step_number += 1
        return values


class TopK(Contender):
    """torch.topk of the magnitudes."""

    def select(self, accumulated: Tensor) -> Tensor:
        """Return exactly k positions."""
        return torch.topk(accumulated.abs(), self.count, sorted=False).indices


class KthValue(Contender):
    """torch.kthvalue of the magnitudes, then a comparison."""

    def select(self, accumulated: Tensor) -> Tensor:
        """Return k positions, more where magnitudes are equal."""
        magnitudes = accumulated.abs()
        threshold = torch.kthvalue(magnitudes, magnitudes.numel() - self.count + 1).values
        return (magnitudes >= threshold).nonzero().flatten()


class Sampled(Contender):
    """Deep Gradient Compression: the threshold of a sample, and top-k of what passes if that is too much."""

    def __init__(self, elements: int, density: float) -> None:
        super().__init__(elements, density)
        self._generator = torch.Generator().manual_seed(_GENERATOR_SEED)

    def select(self, accumulated: Tensor) -> Tensor:
        """Return at most about k positions."""
        return sampled_top_k(accumulated.abs(), self.count, self._generator)


class ReusedThreshold(Contender):
    """An exact threshold every 50 steps, used as it is in between."""

    def select(self, accumulated: Tensor) -> Tensor:
        """Return as many positions as happen to pass."""
        magnitudes = accumulated.abs()
        if self.step_number % _REUSED_STEPS == 0:
            self._threshold = torch.kthvalue(magnitudes, magnitudes.numel() - self.count + 1).values
        return (magnitudes >= self._threshold).nonzero().flatten()


class Ours:
    """One of gradsieve's rules, up to the payload."""

    kernel = "cpu"

    def __init__(self, config: CompressionConfig, elements: int) -> None:
        self._policy = config.policy()
        part = self._policy.layer("tensor", elements)
        self._layer = CompressedLayer(config, elements, "cpu", "tensor", part)
        self._elements = elements
        self._step = 0

    def rest(self) -> Tensor:
        """Return what has not been sent."""
        residual: Tensor = self._layer.state_dict()["feedback"]["residual"]
        return residual

    def step(self, gradient: Tensor) -> Tensor:
        """Take a gradient in and return the payload (uint8)."""
        payload = self._layer.encode(self._layer.select(gradient, step=self._step))
        self._layer.commit()
        self._policy.commit()
        self._step += 1
        return payload

    def sent(self, payload: Tensor) -> Tensor:
        """Return the payload's values."""
        return codec.decode(payload, self._elements).values


def contenders(elements: int, density: float) -> dict[str, Callable[[], Contender | Ours]]:
    """Return factories of all that compete, by the name they have in reports.

    `Compression.importance` selects by the Laplace rule and has no row of its own.
    """
    simple: dict[str, type[Contender]] = {
        "torch.topk": TopK,
        "torch.kthvalue": KthValue,
        "sampled": Sampled,
        "reused": ReusedThreshold,
    }
    rules = {
        f"{each.name}, ours" if each.name in simple else each.name: each.make(density)
        for each in ALGORITHMS.values()
        if each.name != "importance"
    }
    return {name: partial(kind, elements, density) for name, kind in simple.items()} | {
        name: partial(Ours, config, elements) for name, config in rules.items()
    }
