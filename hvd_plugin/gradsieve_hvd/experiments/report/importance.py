"""What the samples with the largest losses say about the whole batch (method B's verification experiment).

Meng, Modern Electronics Technique 2025(13): a batch's importance is read off its samples' losses. That is
sound as far as the gradient of the largest losses points where the whole batch's does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SHARES = (0.10, 0.25, 0.50, 0.75)


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One batch in training.

    losses: fp32 [B], cross-entropies of its samples, nats.
    cosines: of the whole batch's gradient with that of the top share, one per share in SHARES.
    """

    epoch: int
    step: int
    losses: Tensor
    cosines: tuple[float, ...]


def top_share(losses_B: Tensor, share: float) -> Tensor:
    """Return the ceil(share * B) largest losses, differentiable."""
    wanted = math.ceil(round(share * losses_B.numel(), 6))
    return losses_B.topk(wanted).values


def gradient_cosines(
    losses_B: Tensor, parameters: Sequence[Tensor], shares: Sequence[float] = SHARES
) -> tuple[float, ...]:
    """Return, per share, the cosine of the gradients of the mean loss and of the top share's mean loss.

    ``losses_B`` is the differentiable result of one forward pass; its graph is kept, so that the training
    step may follow, and no ``.grad`` is written.
    """
    whole = _gradient(losses_B.mean(), parameters)
    return tuple(cosine(whole, _gradient(top_share(losses_B, share).mean(), parameters)) for share in shares)


def cosine(one: Tensor, other: Tensor) -> float:
    """Return the cosine of two vectors; 0 if one of them is zero and has no direction."""
    norms = float(one.norm()) * float(other.norm())
    return float(one @ other) / norms if norms > 0 else 0.0


def _gradient(loss: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Return the gradient by all parameters as one fp64 vector: squares of small gradients vanish in fp32."""
    parts = torch.autograd.grad(loss, list(parameters), retain_graph=True)
    return torch.cat([part.flatten() for part in parts]).double()
