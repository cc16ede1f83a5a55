"""The learning rate of N ranks: linear scaling with a gradual warm-up (Goyal et al. 2017, section 2.2)."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from gradsieve.density import is_count
from gradsieve.errors import ConfigurationError


class LinearScalingLR(LRScheduler):
    """Raises every group's learning rate from eta to N * eta over the first steps, then leaves it there.

    With N ranks a step averages over N times the samples, so it may be N times as long (method C, step 5),
    but not from the very start. Build the optimizer with eta, the rate that is right on one rank, and
    **average** gradients: summing and scaling would make it N^2.

    1. At step t the factor is 1 + (N - 1) * min(t / warmup_steps, 1).
    2. Each ``step()`` multiplies the rate by the ratio of two factors. So it combines with other schedulers:
       ``ChainedScheduler([LinearScalingLR(...), CosineAnnealingLR(...)])``.

    ranks: N, at least 1. warmup_steps: calls of ``step()`` until N * eta is reached; 0 starts there.

    Raises ConfigurationError if one is out of range.
    """

    def __init__(self, optimizer: Optimizer, ranks: int, warmup_steps: int, last_epoch: int = -1) -> None:
        if not is_count(ranks, 1):
            raise ConfigurationError(f"LinearScalingLR: ranks={ranks!r} must be an integer of at least 1")
        if not is_count(warmup_steps, 0):
            raise ConfigurationError(
                f"LinearScalingLR: warmup_steps={warmup_steps!r} must be an integer of at least 0"
            )
        self.ranks = ranks
        self.warmup_steps = warmup_steps
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return each group's next rate; called by ``step()``."""
        change = self._factor(self.last_epoch)
        if self.last_epoch > 0:
            change /= self._factor(self.last_epoch - 1)
        return [group["lr"] * change for group in self.optimizer.param_groups]

    def _get_closed_form_lr(self) -> list[Any]:
        return [rate * self._factor(self.last_epoch) for rate in self.base_lrs]

    def _factor(self, step: int) -> float:
        if step >= self.warmup_steps:
            return float(self.ranks)
        return 1 + (self.ranks - 1) * step / self.warmup_steps
