"""Notices when gradients are clipped after ``synchronize()``, where that destroys what residuals saved up."""

from __future__ import annotations

import warnings
import weakref
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter

from .parameters import ParameterState

OBSERVED = 10  # steps; what one or two of them lose is an explosion that had to be clipped
REST = 500  # steps between two observations
MOST_LOST = 0.2  # of a tensor's mass
SAME = 1e-3  # relative; one factor for all tensors and steps is no clipping: a sum that becomes a mean, say


@dataclass(slots=True)
class _Exchanged:
    """A gradient as the exchange left it. version: torch's count of changes in place. mass: sum of
    magnitudes, with the loss scale; None unless it is being observed.
    """

    name: str
    parameter: Parameter
    gradient: weakref.ref[Tensor]  # which must not outlive a skipped step for this
    version: int
    scale: float
    mass: float | None

    def is_changed(self) -> bool:
        gradient = self.gradient()
        return gradient is None or self.parameter.grad is not gradient or _changes(gradient) != self.version

    def share_left(self) -> float | None:
        """Return what is left of the mass as a fraction; None if it cannot be told."""
        gradient = self.parameter.grad
        if not self.mass or gradient is None or gradient.is_sparse:
            return None
        left = _mass(gradient) / self.mass
        unscaled = left * self.scale  # if the user has taken the loss scale out, which is no loss
        return unscaled if unscaled <= 1.001 else left


class ClippingWatch:
    """Compares what the optimizer applies with what was exchanged, for one optimizer's compressed tensors.

    1. Look whether a gradient has been changed since its exchange: torch counts that, it costs nothing.
    2. If one has, compare the sums of magnitudes over the next ten steps.
    3. Warn, once, if a tensor has lost more than 20 % on the mean of these steps, and not by one factor for
       all tensors and steps; else look again after 500.

    own_changes: how often whoever exchanges still changes a gradient once it is noted here.
    """

    def __init__(self) -> None:
        self.own_changes = 0
        self._now: dict[str, _Exchanged] = {}
        self._left: dict[str, list[float]] = {}
        self._observing = 0  # steps still to observe
        self._resting = 0  # steps until changes matter again
        self._warned = False

    def exchanged(self, state: ParameterState, gradient: Tensor) -> None:
        """Note a compressed tensor's gradient, which holds the mean now; it is not mutated."""
        if not self._warned:
            mass = _mass(gradient) if self._observing else None
            version = _changes(gradient) + self.own_changes
            held = weakref.ref(gradient)
            self._now[state.name] = _Exchanged(state.name, state.parameter, held, version, state.scale, mass)

    def clear(self) -> None:
        """Forget what was exchanged: the step is not going to be taken."""
        self._now.clear()

    def before_update(self, rank: int) -> None:
        """Compare; the optimizer is about to apply the gradients that are there now. Rank 0 warns."""
        exchanged = list(self._now.values())
        self.clear()
        if self._observing:
            self._observe(exchanged, rank)
        elif self._resting:
            self._resting -= bool(exchanged)
        elif any(each.is_changed() for each in exchanged):
            self._observing = OBSERVED

    def _observe(self, exchanged: list[_Exchanged], rank: int) -> None:
        for each in exchanged:
            left = each.share_left()
            if left is not None:
                self._left.setdefault(each.name, []).append(left)
        self._observing -= bool(exchanged)
        if not self._observing:
            self._judge(rank)

    def _judge(self, rank: int) -> None:
        lost = {name: 1.0 - sum(left) / len(left) for name, left in self._left.items()}
        every = [each for left in self._left.values() for each in left]
        self._left, self._resting = {}, REST
        worst = max(lost, key=lost.__getitem__, default=None)
        rescaled = bool(every) and max(every) - min(every) <= SAME * max(every)
        if worst is None or rescaled or not lost[worst] > MOST_LOST:
            return
        self._warned = True
        if rank == 0:
            warnings.warn(
                f"over the last {OBSERVED} steps, what happens between synchronize() and step() has taken "
                f"{lost[worst]:.0%} of the gradient of '{worst}'. What arrives there is what residuals saved "
                "up over many steps, so clipping it destroys gradients that never come back. Give the bound "
                "to the compressor instead (clip_global_norm=...): it clips before they are accumulated.",
                stacklevel=2,
            )


def _changes(gradient: Tensor) -> int:
    return gradient._version  # noqa: SLF001 - torch has no other name for it


def _mass(gradient: Tensor) -> float:
    return float(torch.linalg.vector_norm(gradient.detach().float(), 1))
