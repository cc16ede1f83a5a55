"""The optimizers that contenders train with, and who cannot be trained with which."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from gradsieve_hvd.experiments.tasks import Task

TASKS_OWN, ADAMW = "task", "adamw"
OPTIMIZERS = (TASKS_OWN, ADAMW)
ADAMW_RATE = 1e-3  # torch's, where no other is given

_UNSUITED = {ADAMW: {"dgc": "it applies momentum itself, in the place of an optimizer that AdamW is not"}}


def plain_optimizer(kind: str, task: Task, model: nn.Module) -> Optimizer:
    """Return an optimizer of a task's model, not yet distributed: the task's own (SGD with momentum) or
    AdamW.
    """
    if kind == ADAMW:
        return torch.optim.AdamW(model.parameters(), lr=ADAMW_RATE)
    return task.optimizer(model)


def usual_rate(kind: str, task: Task) -> float:
    """Return the learning rate of such an optimizer where no other is given."""
    return float(plain_optimizer(kind, task, nn.Linear(1, 1)).param_groups[0]["lr"])


def why_not(kind: str, contender: str) -> str | None:
    """Return why a contender cannot be trained with an optimizer; None if it can."""
    return _UNSUITED.get(kind, {}).get(contender)
