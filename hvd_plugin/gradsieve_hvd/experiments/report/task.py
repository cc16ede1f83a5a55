"""What a report trains: handwritten digits, so that every sample's loss can be seen."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradsieve_hvd.experiments.tasks.digits import Digits


class SampledDigits(Digits):
    """The demo's task in one process, the samples' losses kept apart.

    An epoch has as many steps as the demo's, which share out its images: 130 each.
    """

    def sample_losses(self, model: nn.Module, step: int, seed: int) -> Tensor:
        """Return the cross-entropy of every sample of a step's batch, fp32 [B], differentiable.

        Every epoch is another order of the training images, as in the demo.
        """
        epoch, position = divmod(step, self.steps_per_epoch)
        inputs, targets = self._train
        generator = torch.Generator().manual_seed(1_000_003 * seed + epoch)
        size = len(targets) // self.steps_per_epoch
        batch = torch.randperm(len(targets), generator=generator)[position * size : (position + 1) * size]
        return F.cross_entropy(model(inputs[batch]), targets[batch], reduction="none")
