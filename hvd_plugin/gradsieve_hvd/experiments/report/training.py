"""The training that a report is about: handwritten digits, one process, the Laplace rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from gradsieve import LaplaceConfig

from .fits import LayerFit, Shape, layer_fits, shape
from .importance import BatchRecord, gradient_cosines
from .layer import LayerStep, WatchedLayer
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
    layers = {
        name: WatchedLayer(name, parameter.numel(), config)
        for name, parameter in model.named_parameters()
        if parameter.numel() >= config.min_elements
    }
    report = Report(config, task.steps_per_epoch)
    for step in range(steps):
        progress(f"step {step + 1} of {steps}")
        optimizer.zero_grad()
        losses = task.sample_losses(model, step, seed)
        cosines = gradient_cosines(losses, [*model.parameters()])
        report.batches.append(BatchRecord(step // task.steps_per_epoch, step, losses.detach(), cosines))
        losses.mean().backward()
        fresh, accumulated = _exchange(model, layers, step, report)
        if (step + 1) % task.steps_per_epoch == 0 or step + 1 == steps:
            report.fits += layer_fits(fresh, accumulated, config.density, step)
        optimizer.step()
    report.shapes = {
        "fresh": shape(torch.cat([*fresh.values()])),
        "accumulated": shape(torch.cat([*accumulated.values()])),
    }
    report.accuracy = task.evaluate(model)
    return report


def _exchange(
    model: nn.Module, layers: Mapping[str, WatchedLayer], step: int, report: Report
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Replace the watched layers' gradients by what arrives; return them, fresh and accumulated, flat."""
    fresh: dict[str, Tensor] = {}
    accumulated: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if name not in layers or parameter.grad is None:
            continue
        fresh[name] = parameter.grad.flatten()
        parameter.grad, accumulated[name], record = layers[name].exchange(parameter.grad, step)
        report.selections.append(record)
    return fresh, accumulated
