"""The training loop of simulated ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from gradsieve import CompressionConfig
from gradsieve_hvd.experiments.tasks import Task

from .board import Board
from .ranks import SimulatedRank


@dataclass(frozen=True, slots=True)
class Step:
    """What there is after a step: its number, counted from 0, all ranks, and the model that they share."""

    number: int
    ranks: list[SimulatedRank]
    model: nn.Module

    @property
    def sent_bytes(self) -> float:
        """What a rank has sent in this step; the mean over the ranks."""
        return sum(rank.sent_bytes for rank in self.ranks) / len(self.ranks)

    @property
    def payload_bytes(self) -> float:
        """What a rank has sent of its compressed tensors in this step; the mean over the ranks."""
        return sum(rank.payload_bytes for rank in self.ranks) / len(self.ranks)


def training(
    task: Task,
    config: CompressionConfig | None,
    *,
    ranks: int,
    steps: int,
    seed: int = 0,
    optimizer: Callable[[nn.Module], Optimizer] | None = None,
    clip_global_norm: float | None = None,
    before_step: Callable[[nn.Module], object] = lambda _: None,
) -> Iterator[Step]:
    """Train a demo task as ``ranks`` ranks would, and yield after every step.

    1. Each rank takes the gradient of its own batch and sends it, by ``config`` or dense if that is None.
    2. All ranks receive the mean of what arrives, and the optimizer (the task's, unless given) applies it.
    3. The learning rate falls to zero by a cosine over ``steps``, as in the demo.

    ``clip_global_norm``: as in the drop-in, before gradients are accumulated. ``before_step``: what a user
    does with the mean gradients between ``synchronize()`` and ``step()``, such as clipping them.

    Under momentum correction an optimizer with momentum of its own, such as SGD's, loses it.
    """
    model = task.model(seed)
    made = (optimizer or task.optimizer)(model)
    if config is not None and config.momentum is not None:
        _drop_momentum(made)
    scheduler = CosineAnnealingLR(made, steps)
    board = Board(ranks)
    members = [SimulatedRank(config, model, board.rank(number), clip_global_norm) for number in range(ranks)]
    for step in range(steps):
        sent = []
        for number, rank in enumerate(members):
            model.zero_grad()
            task.loss(model, step, number, seed, rank.recorder).backward()
            sent.append(rank.send(gradients_of(model)))
        means = {name: torch.stack([each[name] for each in sent]).mean(dim=0) for name in sent[0]}
        applied = [rank.receive(means) for rank in members]
        for name, parameter in model.named_parameters():
            parameter.grad = applied[0][name]
        before_step(model)
        made.step()
        scheduler.step()
        yield Step(step, members, model)


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradients by parameter: those tensors themselves, which the next ``zero_grad`` lets go."""
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _drop_momentum(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        if "momentum" in group:
            group["momentum"], group["nesterov"] = 0.0, False
