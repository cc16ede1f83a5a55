"""Local gradient clipping before accumulation (Deep Gradient Compression, section 3.2).

A residual that has swallowed one exploding gradient sends it for many steps. So each rank clips its own
gradient before it is accumulated, and before momentum correction.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from gradsieve.accumulated import Accumulated
from gradsieve.policies.energy import norm
from gradsieve.residual import ErrorFeedback
from gradsieve.selection import Selection
from gradsieve.sparse_gradient import SparseGradient


class ClippedFeedback:
    """Scales a gradient whose norm is above ``clip_norm`` down to it; wraps any other error feedback.

    The norm is one tensor's and one rank's, in unscaled units. With N ranks, whose gradients are independent
    but for their mean, the mean's norm is about N^-1/2 of theirs summed in quadrature; so for a bound G that
    would be right on one node the paper uses ``clip_norm = G * N ** -0.5``. Costs one pass over the gradient.
    A gradient that is not finite is handed on as it is, to be refused.
    """

    def __init__(self, inner: ErrorFeedback, clip_norm: float) -> None:
        self._inner = inner
        self._clip_norm = clip_norm

    @property
    def owns_accumulated(self) -> bool:
        """See :class:`gradsieve.residual.ErrorFeedback`."""
        return self._inner.owns_accumulated

    def begin(self, gradient: Tensor, unscale: float = 1.0) -> Accumulated:
        """See :class:`gradsieve.residual.ErrorFeedback`; ``gradient`` is not mutated."""
        length = norm(gradient) * abs(unscale)
        clips = math.isfinite(length) and length > self._clip_norm
        return self._inner.begin(gradient, unscale * (self._clip_norm / length) if clips else unscale)

    def update(self, selection: Selection) -> None:
        """See :class:`gradsieve.residual.ErrorFeedback`."""
        self._inner.update(selection)

    def leave(self, rest: Tensor | None) -> None:
        """See :class:`gradsieve.residual.ErrorFeedback`."""
        self._inner.leave(rest)

    def reclaim(self, rejected: SparseGradient) -> None:
        """See :class:`gradsieve.residual.ErrorFeedback`."""
        self._inner.reclaim(rejected)

    def commit(self) -> None:
        """Make the step final."""
        self._inner.commit()

    def rollback(self) -> None:
        """Undo the step."""
        self._inner.rollback()

    def waiting(self) -> float:
        """See :class:`gradsieve.residual.ErrorFeedback`."""
        return self._inner.waiting()

    def state_dict(self) -> dict[str, Any]:
        """Return the inner state: clipping remembers nothing."""
        return self._inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hand the state to the inner feedback."""
        self._inner.load_state_dict(state)
