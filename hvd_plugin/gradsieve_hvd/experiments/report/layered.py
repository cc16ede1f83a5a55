"""The same training under the layered rule: thresholds and densities per layer over time (method A's report).

Wang, Zhu, J. Hubei Minzu Univ. (Nat. Sci.) 2025(1):34-40: every layer has a threshold and a density of its
own, which follow the training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradsieve import LayeredConfig
from gradsieve.density import entries_to_keep
from gradsieve_hvd.experiments.simulate import SimulatedRank
from gradsieve_hvd.experiments.simulate.training import gradients_of

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
    rank = SimulatedRank(config, model)
    records = []
    for step in range(steps):
        progress(f"layered rule, step {step + 1} of {steps}")
        optimizer.zero_grad()
        task.sample_losses(model, step, seed).mean().backward()
        for name, gradient in rank.receive(rank.send(gradients_of(model))).items():
            model.get_parameter(name).grad = gradient
        records += [
            LayeredStep(
                layer=name,
                step=step,
                elements=model.get_parameter(name).numel(),
                density=layer.density,
                kept=layer.kept,
                threshold=layer.threshold or 0.0,
            )
            for name, layer in rank.layers.items()
        ]
        optimizer.step()
    return records
