"""What the demo needs to know of a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from gradsieve.losses import DEFAULT_RECORDER, LossRecorder


class Task(Protocol):
    """A data set, a model and how to judge it. All randomness comes from the seeds handed in."""

    name: str
    metric: str  # "accuracy" (a fraction) or "loss" (nats): the key in results.json
    steps_per_epoch: int

    def model(self, seed: int) -> nn.Module:
        """The model with its initial weights, the same for every rank."""

    def optimizer(self, model: nn.Module) -> Optimizer:
        """The optimizer, not yet distributed."""

    def loss(
        self, model: nn.Module, step: int, rank: int, seed: int, recorder: LossRecorder = DEFAULT_RECORDER
    ) -> Tensor:
        """Mean loss of this rank's batch of a step, its samples' losses recorded; ranks get different samples
        (METHODS C.6: every node its own data).
        """

    def evaluate(self, model: nn.Module) -> float:
        """The metric on held-out data."""


class DealtTask(Task, Protocol):
    """One whose samples can be dealt to ranks, in batches of any size."""

    batch: int  # samples of a rank's batch in `loss`
    samples: int  # of the training data

    def loss_on(
        self, model: nn.Module, samples: Sequence[int], recorder: LossRecorder = DEFAULT_RECORDER
    ) -> Tensor:
        """Mean loss of chosen samples, by their numbers."""
