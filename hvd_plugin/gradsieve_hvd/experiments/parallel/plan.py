"""What the ranks of ``gradsieve bench modes`` are told."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from gradsieve_hvd.experiments.peers.plan import Plan, Row
from gradsieve_hvd.experiments.tasks import DealtTask

Training = tuple[str, int, float, float]
"""Contender, seed, learning rate and momentum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModesPlan(Plan):
    """Trainings, one after the other.

    slow: as in rows. batch: samples of a nominal batch of one rank. trainings: what is trained. until: the
    loss or accuracy on held-out data that is the target. budget_seconds: of each training. judge_seconds:
    from one copy of the weights that is judged to the next. server_ranks: that keep weights in modes with a
    parameter server; None for all.
    """

    slow: tuple[str, ...]
    batch: int
    trainings: tuple[Training, ...]
    until: float
    budget_seconds: float
    judge_seconds: float
    server_ranks: tuple[int, ...] | None


def conditions(plan: ModesPlan, ranks: int) -> Row:
    """Return what all rows of a table have in common."""
    return {
        "task": plan.task,
        "ranks": ranks,
        "link": plan.link,
        "slow": list(plan.slow),
        "density": plan.density,
        "batch": plan.batch,
        "until": plan.until,
        "budget_seconds": plan.budget_seconds,
        "judge_seconds": plan.judge_seconds,
        "server_ranks": None if plan.server_ranks is None else list(plan.server_ranks),
    }


def usual_settings(task: DealtTask) -> tuple[float, float]:
    """Return the learning rate and the momentum of a task's own optimizer."""
    (group,) = task.optimizer(nn.Linear(1, 1)).param_groups
    return float(group["lr"]), float(group["momentum"])
