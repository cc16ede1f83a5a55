"""Per-sample losses of the ordinary forward pass, for a policy that asks what a batch is worth (method B).

Users change one line: ``gradsieve.cross_entropy`` in the place of ``torch.nn.functional.cross_entropy``.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

_CALLS_KEPT = 256  # of ten steps with 25 micro-batches each; older ones are forgotten unread


class LossRecorder:
    """The sample losses of the last 256 recorded batches, in order; any number of readers.

    Nothing is copied and no device is waited for: it keeps the detached tensors that it is given.
    """

    def __init__(self) -> None:
        self._batches: deque[Tensor] = deque(maxlen=_CALLS_KEPT)
        self._position = 0

    @property
    def position(self) -> int:
        """Batches recorded so far."""
        return self._position

    def record(self, losses: Tensor) -> None:
        """Keep the losses of a batch (any shape and floating-point dtype); NaN marks samples without one."""
        self._batches.append(losses.detach())
        self._position += 1

    def between(self, start: int, end: int) -> list[Tensor]:
        """Return the batches from position ``start`` up to, not including, ``end`` that are still kept."""
        first = self._position - len(self._batches)
        return list(self._batches)[max(start - first, 0) : max(end - first, 0)]


DEFAULT_RECORDER = LossRecorder()


def cross_entropy(
    input: Tensor,  # noqa: A002 - torch's names, so that only the function's name has to be changed
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum", "none"] = "mean",
    label_smoothing: float = 0.0,
    *,
    recorder: LossRecorder = DEFAULT_RECORDER,
) -> Tensor:
    """Return ``torch.nn.functional.cross_entropy`` of the same arguments, and record the losses per sample.

    1. Compute the losses with ``reduction="none"``.
    2. Record them, detached, unless gradients are switched off (an evaluation is no training). Targets equal
       to ``ignore_index`` are marked as no samples. Nothing waits for a device.
    3. Reduce as torch does: the mean is the sum over the samples that count, divided by their number or, with
       ``weight``, by the sum of their weights. Only its order of summation is its own.

    input: logits [B, C], [C] or, for token losses, [B, C, T...]. target: class numbers [B], [] or [B, T...],
    or class probabilities of the shape of ``input``. recorder: the one that the policy reads. The default
    serves one model per process; for two, give each its own here and in ``Compression.importance``.
    """
    losses = F.cross_entropy(
        input, target, weight, ignore_index=ignore_index, reduction="none", label_smoothing=label_smoothing
    )
    classes = not target.is_floating_point()
    if torch.is_grad_enabled():
        recorder.record(losses.detach().masked_fill(target == ignore_index, torch.nan) if classes else losses)
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    return losses.sum() / _denominator(losses, target if classes else None, weight, ignore_index)


def _denominator(
    losses: Tensor, target: Tensor | None, weight: Tensor | None, ignore_index: int
) -> Tensor | int:
    if target is None:
        return losses.numel()
    counts = target != ignore_index
    if weight is None:
        return counts.sum()
    return weight[target.where(counts, 0)].where(counts, 0).sum()
