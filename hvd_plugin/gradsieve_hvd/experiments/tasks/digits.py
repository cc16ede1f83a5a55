"""Handwritten digits (scikit-learn's 1 797 images of 8 x 8) with a multilayer perceptron: for accuracy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradsieve.losses import DEFAULT_RECORDER, LossRecorder, cross_entropy

_TEST_IMAGES = 360
_BATCH = 32
_RANKS = 4
_WIDTH = 640


class Digits:
    """98.3 % of its 458 000 parameters are in tensors above the default size threshold."""

    name = "digits"
    metric = "accuracy"
    batch = _BATCH

    def __init__(self) -> None:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        inputs = (torch.tensor(images, dtype=torch.float32) / 16.0 - 0.5)[order]
        targets = torch.tensor(labels, dtype=torch.int64)[order]
        self._test = inputs[:_TEST_IMAGES], targets[:_TEST_IMAGES]
        self._train = inputs[_TEST_IMAGES:], targets[_TEST_IMAGES:]
        self.samples = len(self._train[1])
        self.steps_per_epoch = len(self._train[1]) // (_BATCH * _RANKS)

    def model(self, seed: int) -> nn.Module:
        """The model with the weights of this seed."""
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(64, _WIDTH), nn.ReLU(),
            nn.Linear(_WIDTH, _WIDTH), nn.ReLU(),
            nn.Linear(_WIDTH, 10),
        )  # fmt: skip

    def optimizer(self, model: nn.Module) -> Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    def loss(
        self, model: nn.Module, step: int, rank: int, seed: int, recorder: LossRecorder = DEFAULT_RECORDER
    ) -> Tensor:
        """Mean cross-entropy of the rank's own batch."""
        epoch, position = divmod(step, self.steps_per_epoch)
        order = torch.randperm(
            self.samples, generator=torch.Generator().manual_seed(1_000_003 * seed + epoch)
        )
        start = (position * _RANKS + rank) * _BATCH
        return self.loss_on(model, order[start : start + _BATCH].tolist(), recorder)

    def loss_on(
        self, model: nn.Module, samples: Sequence[int], recorder: LossRecorder = DEFAULT_RECORDER
    ) -> Tensor:
        """Mean cross-entropy of chosen images."""
        inputs, targets = self._train
        chosen = torch.tensor(samples)
        return cross_entropy(model(inputs[chosen]), targets[chosen], recorder=recorder)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """The metric on the held-out part."""
        inputs, targets = self._test
        return float((model(inputs).argmax(dim=1) == targets).float().mean())
