"""The same training under the layered rule: thresholds and densities per layer over time (method A's report).

Wang, Zhu, J. Hubei Minzu Univ. (Nat. Sci.) 2025(1):34-40: every layer has a threshold and a density of its
own, which follow the training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradsieve import LayerCompressor, LayeredConfig, decode
from gradsieve.density import entries_to_keep

from .task import SampledDigits


@dataclass(frozen=True, slots=True)
class LayeredStep:
    """What the layered rule did with one layer in one step.

    density: asked for by the policy. kept: entries sent. threshold: where the next selection begins.
    """

    layer: str
    step: int
    elements: int
    density: float
    kept: int
    threshold: float

    @property
    def kept_ratio(self) -> float:
        """Entries sent, as a multiple of k."""
        return self.kept / entries_to_keep(self.density, self.elements)


def train_layered(
    config: LayeredConfig,
    steps: int,
    seed: int,
    progress: Callable[[str], None] = lambda _: None,
    task: SampledDigits | None = None,
) -> list[LayeredStep]:
    """Train ``steps`` steps by the layered rule, with error feedback, and return what was seen, in order."""
    task = task or SampledDigits()
    model = task.model(seed)
    optimizer = task.optimizer(model)
    policy = config.policy()
    compressors = {
        name: LayerCompressor(config, size, name=name, policy=policy.layer(name, size))
        for name, size in ((name, parameter.numel()) for name, parameter in model.named_parameters())
        if config.compresses(name, size)
    }
    records = []
    for step in range(steps):
        progress(f"layered rule, step {step + 1} of {steps}")
        optimizer.zero_grad()
        task.sample_losses(model, step, seed).mean().backward()
        for name, parameter in model.named_parameters():
            if name not in compressors or parameter.grad is None:
                continue
            compressor = compressors[name]
            parameter.grad = _exchange(compressor, parameter.grad, step)
            records.append(
                LayeredStep(
                    layer=name,
                    step=step,
                    elements=parameter.numel(),
                    density=compressor.density,
                    kept=compressor.kept,
                    threshold=compressor.threshold or 0.0,
                )
            )
        policy.commit()
        optimizer.step()
    return records


def _exchange(compressor: LayerCompressor, gradient: Tensor, step: int) -> Tensor:
    """Return what arrives of a gradient, in its shape."""
    payload = decode(compressor.compress(gradient, step=step), gradient.numel())
    compressor.commit()
    arrived = torch.zeros(gradient.numel())
    arrived[payload.indices] = payload.values
    return arrived.view(gradient.shape)
