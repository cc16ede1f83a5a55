"""The training that a report is about: handwritten digits, one process, the Laplace rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from gradsieve import LaplaceConfig
from gradsieve_hvd.experiments.simulate.training import gradients_of

from .fits import LayerFit, Shape, layer_fits, shape
from .importance import BatchRecord, gradient_cosines
from .layer import LayerStep, WatchedRank
from .layered import LayeredStep
from .task import SampledDigits


@dataclass
class Report:
    """All that was seen in one training.

    selections: per step and compressed layer. fits: per compressed layer and for all, at the last step of
    each epoch. shapes: of all compressed layers' elements at the last step, "fresh" and "accumulated".
    batches: per step. accuracy: on held-out images, a fraction.
    layered: per step and compressed layer of a training under the layered rule; empty if there was none.
    """

    config: LaplaceConfig
    steps_per_epoch: int
    selections: list[LayerStep] = field(default_factory=list)
    fits: list[LayerFit] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)
    batches: list[BatchRecord] = field(default_factory=list)
    accuracy: float = 0.0
    layered: list[LayeredStep] = field(default_factory=list)


def train(
    config: LaplaceConfig,
    steps: int,
    seed: int,
    progress: Callable[[str], None] = lambda _: None,
    task: SampledDigits | None = None,
) -> Report:
    """Train ``steps`` steps and return what was seen.

    1. One forward pass gives the samples' losses, and the gradients of the largest ones.
    2. Backward; each parameter of at least ``config.min_elements`` elements goes through the Laplace rule
       with error feedback, the others as they are.
    3. The optimizer takes what arrives.
    """
    task = task or SampledDigits()
    model = task.model(seed)
    optimizer = task.optimizer(model)
    rank = WatchedRank(model, config)
    report = Report(config, task.steps_per_epoch)
    for step in range(steps):
        progress(f"step {step + 1} of {steps}")
        optimizer.zero_grad()
        losses = task.sample_losses(model, step, seed)
        cosines = gradient_cosines(losses, [*model.parameters()])
        report.batches.append(BatchRecord(step // task.steps_per_epoch, step, losses.detach(), cosines))
        losses.mean().backward()
        gradients = gradients_of(model)
        watched = rank.exchange(gradients, step)
        for name, gradient in watched.arrived.items():
            model.get_parameter(name).grad = gradient
        report.selections += watched.seen
        accumulated = watched.accumulated
        fresh = {name: gradients[name].flatten() for name in accumulated}
        if (step + 1) % task.steps_per_epoch == 0 or step + 1 == steps:
            report.fits += layer_fits(fresh, accumulated, config.density, step)
        optimizer.step()
    report.shapes = {
        "fresh": shape(torch.cat([*fresh.values()])),
        "accumulated": shape(torch.cat([*accumulated.values()])),
    }
    report.accuracy = task.evaluate(model)
    return report
