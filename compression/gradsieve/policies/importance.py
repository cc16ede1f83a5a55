"""Method B: the density follows the importance of the batches and the state of the network.

Source: Meng Yugong, Modern Electronics Technique 2025(13), of which only the abstract is public. What is
marked **(r)** is a reconstruction.
"""

from __future__ import annotations

import statistics
import warnings
from typing import Any

import torch
from torch import Tensor

from gradsieve.losses import LossRecorder
from gradsieve.policies import state as saved
from gradsieve.policies.base import LayerPolicy
from gradsieve.policies.fixed import UniformLayer
from gradsieve.policies.network import Network

QUANTILE = 0.5  # (r) a loss above this quantile of the recent ones belongs to a hard sample
RECENT = 1024  # (r) losses that the quantile is taken of
LOSS_RATE = 0.05  # (r) of the moving average of the batches' mean loss
LEAST_CHANGE = 0.2  # (r) smaller changes of the density are not made
_STATE = (
    "steps",
    "density",
    "usual_loss",
    "recent_losses",
    "unread_losses",
    "empty_seconds",
    "seconds_per_byte",
    "reference_seconds_per_byte",
    "first_seconds_per_byte",
)


def batch_importance(losses: Tensor, usual: float, recent: Tensor) -> float:
    """Return I = mean(losses) / (2 usual) + f / (2 (1 - q)), clipped to [1/2, 2] **(r)** (step 2).

    losses: fp64 [S], S >= 1. usual: the moving average of mean losses. recent: fp64 [R], losses seen before;
    f is the fraction of ``losses`` above their q-quantile. A term with nothing to compare with counts 1/2.
    """
    level = float(losses.mean()) / usual if usual > 0 else 1.0
    hard = 1.0
    if recent.numel():
        above = losses > torch.quantile(recent, QUANTILE)
        hard = float(above.double().mean()) / (1 - QUANTILE)
    return min(max(0.5 * level + 0.5 * hard, 0.5), 2.0)


class ImportancePolicy:
    """One density for all layers, decided anew every ``period`` steps **(r)**.

    1. Collect the sample losses of every step from the ``recorder``; compute nothing until the period ends.
    2. Then get the importance I of the period's samples: see `batch_importance`.
    3. Smooth the delay per byte D of every exchange that somebody reports: see `Network`.
    4. density = clip(rho_0 * I^a * (D_ref / D)^b, bounds), rho_0 the configured density, a ``loss_power``, b
       ``network_power``; it changes only by more than 20 % **(r)**.

    A more important batch sends more, a slower network less. A rank decides by its own samples and delays.
    Losses of a step that was rolled back are dropped; delays are not, being the network's.
    """

    def __init__(
        self,
        density: float,
        *,
        bounds: tuple[float, float],
        loss_power: float,
        network_power: float,
        period: int,
        recorder: LossRecorder,
    ) -> None:
        self._configured = self.density = density
        self._bounds = bounds
        self._loss_power = loss_power
        self._network_power = network_power
        self._period = period
        self._recorder = recorder
        self._steps = 0
        self._usual: float | None = None  # moving average of mean losses
        self._recent = torch.empty(0, dtype=torch.float64, device="cpu")
        self._network = Network(period)
        self._unread: list[list[Tensor]] = []  # of the committed steps of this period
        self._read_from = recorder.position
        self._read_to: int | None = None  # where the step under way ended its forward pass
        self._exchanges: list[tuple[float, int]] = []

    @property
    def times_exchanges(self) -> bool:
        """Yes, unless the network has no say."""
        return self._network_power != 0

    def layer(self, name: str, elements: int) -> LayerPolicy:  # noqa: ARG002
        """See :class:`gradsieve.policies.base.Policy`."""
        return UniformLayer(self._decide)

    def _decide(self) -> float:
        if self._read_to is None:
            self._read_to = self._recorder.position
        return self.density

    def observe_exchange(self, seconds: float, size: int) -> None:
        """See :class:`gradsieve.policies.base.Policy`."""
        self._exchanges.append((seconds, size))

    def commit(self) -> None:
        """Take over what was noted in the step; at the end of a period decide the next density."""
        for seconds, size in self._exchanges:
            self._network.observe(seconds, size)
        self._exchanges = []
        if self._read_to is not None:
            self._unread.append(self._recorder.between(self._read_from, self._read_to))
            self._read_from, self._read_to = self._read_to, None
        self._steps += 1
        if self._steps % self._period == 0:
            self._adapt()

    def rollback(self) -> None:
        """Drop the step's losses; what the network took stays true."""
        if self._read_to is not None:
            self._read_from, self._read_to = self._read_to, None

    def _adapt(self) -> None:
        steps = [losses for losses in map(_samples, self._unread) if losses.numel()]
        self._unread = []
        importance = self._learn(steps) if steps else 1.0
        if not steps and self._loss_power != 0 and self._usual is None:
            warnings.warn(
                f"Compression.importance: no sample losses were recorded in {self._period} steps, so the "
                "batches' importance has no say. Compute the loss with gradsieve.cross_entropy (and the same "
                "recorder), or set loss_power=0.",
                stacklevel=2,
            )
        wanted = self._configured * importance**self._loss_power
        wanted *= self._network.speed() ** self._network_power
        wanted = min(max(wanted, self._bounds[0]), self._bounds[1])
        if abs(wanted - self.density) > LEAST_CHANGE * self.density:
            self.density = wanted

    def _learn(self, steps: list[Tensor]) -> float:
        """Return the importance of the steps' losses, against what was known before; then know them, too."""
        samples = torch.cat(steps)
        means = [float(losses.mean()) for losses in steps]
        usual = statistics.fmean(means) if self._usual is None else self._usual
        importance = batch_importance(samples, usual, self._recent)
        for mean in means:
            usual += LOSS_RATE * (mean - usual)
        self._usual = usual
        self._recent = torch.cat([self._recent, samples])[-RECENT:]
        return importance

    def state_dict(self) -> dict[str, Any]:
        """Return density, losses and delays. Losses that have not been looked at yet are: it may take a
        moment on a GPU.
        """
        return {
            "steps": self._steps,
            "density": self.density,
            "usual_loss": self._usual,
            "recent_losses": self._recent.tolist(),
            "unread_losses": [_samples(batches).tolist() for batches in self._unread],
            "empty_seconds": self._network.empty,
            "seconds_per_byte": self._network.smoothed,
            "reference_seconds_per_byte": self._network.reference,
            "first_seconds_per_byte": list(self._network.first),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :class:`gradsieve.policies.base.Policy`. What was recorded but not committed is dropped."""
        saved.require_fields(state, *_STATE)
        unread = saved.lists_of_numbers(state, "unread_losses")
        network = Network(
            self._period,
            saved.number_or_none(state, "empty_seconds"),
            saved.number_or_none(state, "seconds_per_byte"),
            saved.number_or_none(state, "reference_seconds_per_byte"),
            tuple(saved.numbers(state, "first_seconds_per_byte", 0.0)),
        )
        recent = torch.tensor(saved.numbers(state, "recent_losses"), dtype=torch.float64, device="cpu")
        usual = saved.number_or_none(state, "usual_loss")
        density, steps = saved.fraction(state, "density"), saved.count(state, "steps")
        self._steps, self.density, self._usual, self._recent = steps, density, usual, recent
        self._network = network
        self._unread = [[torch.tensor(losses, dtype=torch.float64, device="cpu")] for losses in unread]
        self._read_from, self._read_to, self._exchanges = self._recorder.position, None, []


def _samples(batches: list[Tensor]) -> Tensor:
    """Return the finite losses of some batches, fp64 [S] on the CPU; only here a device is waited for."""
    if not batches:
        return torch.empty(0, dtype=torch.float64, device="cpu")
    losses = torch.cat([batch.reshape(-1).to(torch.float64) for batch in batches]).cpu()
    return losses[torch.isfinite(losses)]
