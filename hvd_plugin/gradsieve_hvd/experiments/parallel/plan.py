"""What the ranks of ``gradsieve bench modes`` are told."""

from __future__ import annotations

from dataclasses import dataclass

from gradsieve_hvd.experiments.peers.plan import Plan

Training = tuple[str, int, float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModesPlan(Plan):
    """Trainings, one after the other.

    slow: as in rows. trainings: mode, seed, learning rate and momentum (None for the task's own) of each.
    until: the loss or accuracy on held-out data that is the target. budget_seconds: of each training.
    judge_seconds: from one copy of the weights that is judged to the next. server_ranks: that keep weights in
    modes with a parameter server; None for all.
    """

    slow: tuple[str, ...]
    trainings: tuple[Training, ...]
    until: float
    budget_seconds: float
    judge_seconds: float
    server_ranks: tuple[int, ...] | None
