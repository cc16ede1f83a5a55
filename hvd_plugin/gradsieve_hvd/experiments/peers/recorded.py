"""A task whose gradients were recorded before, for steps that are an exchange and little else."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradsieve.losses import DEFAULT_RECORDER, LossRecorder
from gradsieve_hvd.experiments.bench.recording import record
from gradsieve_hvd.experiments.tasks import Task


class RecordedTask:
    """Another task's parameters, and gradients that this rank has recorded in training alone.

    The loss is the sum of parameters times recorded gradients, so that backward gives these, the last
    parameters' first, and costs a pass over memory.

    Args:
        task: whose.
        rank: whose batches.
        steps: how many gradients are recorded (each as large as the model); they repeat.
    """

    steps_per_epoch = 1

    def __init__(self, task: Task, rank: int, steps: int) -> None:
        self._task = task
        self.name, self.metric = f"{task.name}, recorded", task.metric
        self._gradients = [list(each.values()) for each in record(task, steps, rank)]

    def model(self, seed: int) -> nn.Module:
        """The task's model with another forward pass."""
        return _Replayed(self._task.model(seed))

    def optimizer(self, model: nn.Module) -> Optimizer:
        """The task's."""
        return self._task.optimizer(model)

    def loss(
        self,
        model: nn.Module,
        step: int,
        rank: int,  # noqa: ARG002 - the one that recorded
        seed: int,  # noqa: ARG002 - likewise
        recorder: LossRecorder = DEFAULT_RECORDER,  # noqa: ARG002 - there are no samples
    ) -> Tensor:
        """Return a number with the recorded gradient of a step; it means nothing else."""
        total: Tensor = model(self._gradients[step % len(self._gradients)])
        return total

    def evaluate(self, model: nn.Module) -> float:  # noqa: ARG002 - nothing is trained
        """Return nothing of use."""
        return float("nan")


class _Replayed(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, gradients: Sequence[Tensor]) -> Tensor:
        pairs = zip(self.module.parameters(), gradients, strict=True)
        total = torch.zeros(())
        for parameter, gradient in pairs:
            total = total + (parameter * gradient.view_as(parameter)).sum()
        return total
