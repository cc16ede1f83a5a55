"""What one rank's training by a parameter server has come to so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from gradsieve_hvd.optimizer.stats import OptimizerStats
from gradsieve_hvd.server.worker import Fresh


@dataclass(slots=True)
class ServedCounters:
    """One rank's training so far.

    steps: calls of ``step()``. kept: those that brought no new weights. pushed_bytes: payloads of gradients.
    reply_bytes: weights that came back.
    computing_seconds: between steps, with selecting and encoding. waiting_seconds: in ``step()``, from the
    push to the answer. held_seconds: of these, those in which the mode had it wait for others; the rest is
    what pushes and answers took. staleness: releases that an applied gradient had missed, the mean over all
    ranks' so far. share: of the batches that this rank is dealt from now on, in those of ``batch_size``.
    """

    steps: int = 0
    kept: int = 0
    pushed_bytes: int = 0
    reply_bytes: int = 0
    computing_seconds: float = 0.0
    waiting_seconds: float = 0.0
    held_seconds: float = 0.0
    staleness: float = 0.0
    share: float = 1.0

    def mean(self, step: int) -> OptimizerStats:
        """Return the means of its steps. step: optimizer steps before."""
        steps = max(self.steps, 1)
        return OptimizerStats(
            step=step,
            payload_bytes=round(self.pushed_bytes / steps),
            step_seconds=(self.computing_seconds + self.waiting_seconds) / steps,
            exposed_seconds=self.waiting_seconds / steps,
        )

    def count(
        self, payloads: Mapping[int, Tensor], fresh: Fresh | None, computing: float, waiting: float
    ) -> None:
        """A step was taken, with these payloads and the weights that came back; the last two in seconds."""
        self.steps += 1
        self.kept += fresh is None
        self.pushed_bytes += sum(each.numel() for each in payloads.values())
        self.reply_bytes += sum(each.numel() for each, _ in fresh.tensors.values()) if fresh else 0
        self.computing_seconds += computing
        self.waiting_seconds += waiting
