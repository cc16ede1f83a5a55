"""A tensor of which everything is exchanged, residual included."""

from __future__ import annotations

import torch
from torch import Tensor

from gradsieve.residual import ErrorFeedback
from gradsieve.sparse_gradient import SparseGradient


class WholeFeedback:
    """All of a tensor's accumulated gradient on its way out, and what of it does not arrive.

    A step is ``begin`` or ``abstain``, ``end``, then ``commit`` or ``rollback`` of the feedback: what does
    not arrive may be known only after the exchange.

    Args:
        feedback: the tensor's; its residual is sent along, and takes back what is rejected.
        elements: N.
        device: the gradient's.

    owned: whether what ``begin`` or ``abstain`` has returned may be overwritten, and stays until ``end``.
    """

    def __init__(self, feedback: ErrorFeedback, elements: int, device: torch.device | str) -> None:
        self._feedback, self._elements, self._device = feedback, elements, device
        self._takes_part = False

    @property
    def owned(self) -> bool:
        """See above."""
        return self._feedback.owns_accumulated or not self._takes_part

    def begin(self, gradient: Tensor, unscale: float) -> Tensor:
        """Return gradient * unscale + residual (fp32 [N], flat), valid until this thread begins another, or
        longer; see `owned`.

        gradient: any shape of N elements, any strides, fp16, bf16 or fp32; not mutated.
        """
        self._takes_part = True
        return self._feedback.begin(gradient, unscale).tensor()

    def abstain(self) -> Tensor:
        """Return zeros (fp32 [N], flat), for a step that the tensor takes no part in; its residual waits."""
        self._takes_part = False
        return torch.zeros(self._elements, dtype=torch.float32, device=self._device)

    def end(self, rejected: Tensor | None) -> None:
        """Note what the exchange took of this rank's part (fp32 [N]; None for nothing); copied, unless it was
        written where that part was.
        """
        if self._takes_part:
            self._feedback.leave(rejected)
        elif rejected is not None:  # of the others' sum, what this rank is to make up for
            indices = torch.arange(self._elements, device=rejected.device)
            self._feedback.reclaim(SparseGradient(self._elements, indices, rejected))
