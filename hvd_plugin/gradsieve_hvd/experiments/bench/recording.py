"""Gradients of real training, as long as one asks for.

The character model's gradients (6.1 million elements a step) are recorded over consecutive steps of dense
training. A gradient of N elements is made of several steps' laid end to end, so that element i of one step
and of the next belong to the same parameter, as in a model of that size.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradsieve_hvd.experiments.tasks import TASKS, Task

_WARM_UP_STEPS = 10  # the first gradients are like no others


class Recording:
    """Consecutive gradients of one model; ``tensors[name][step]`` is fp32, flat."""

    def __init__(self, steps: int, task: str = "charlm") -> None:
        self.tensors: dict[str, list[Tensor]] = {}
        for gradients in record(TASKS[task](), steps):
            for name, gradient in gradients.items():
                self.tensors.setdefault(name, []).append(gradient)
        self.steps = steps
        self._whole = [torch.cat([tensor[step] for tensor in self.tensors.values()]) for step in range(steps)]

    def gradient(self, step: int, elements: int) -> Tensor:
        """Return the gradient of a step, [elements]; after the recorded steps it begins again."""
        out = torch.empty(elements)
        for number, start in enumerate(range(0, elements, self._whole[0].numel())):
            # Pieces of one step come from distant steps, so that none repeats another.
            recorded = self._whole[(step + number * 7) % self.steps]
            part = out[start : start + recorded.numel()]
            part.copy_(recorded[: part.numel()])
        return out


def record(task: Task, steps: int, rank: int = 0) -> Iterator[dict[str, Tensor]]:
    """Train alone, on a rank's batches, and yield the gradients of ``steps`` steps by parameter, flat."""
    model = task.model(seed=0)
    optimizer = task.optimizer(model)
    for step in range(_WARM_UP_STEPS + steps):
        optimizer.zero_grad()
        task.loss(model, step, rank, seed=0).backward()
        if step >= _WARM_UP_STEPS:
            yield {
                name: parameter.grad.detach().flatten().clone()
                for name, parameter in model.named_parameters()
                if parameter.grad is not None
            }
        optimizer.step()
