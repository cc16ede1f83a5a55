"""Momentum correction: momentum that compression does not distort (Deep Gradient Compression, section 3.2).

A sparse update reaches an optimizer's momentum late and in lumps: what waited in the residual gets none of
the decay that it would have had. So momentum is applied before, to this rank's own gradient, and the
*velocities* are what is accumulated and sent. The optimizer must then be SGD **without** momentum of its own,
or momentum would be applied twice. Weight decay belongs to the optimizer and gets no momentum; with momentum
m multiply it by 1 / (1 - m) for the same effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradsieve.accumulated import Accumulated
from gradsieve.density import is_number
from gradsieve.double_buffered import DoubleBuffered
from gradsieve.errors import ConfigurationError
from gradsieve.kernels import add_scaled
from gradsieve.residual import ErrorFeedback
from gradsieve.selection import Selection
from gradsieve.sparse_gradient import SparseGradient


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentumCorrection:
    """Momentum on each rank before compression; takes the place of the optimizer's own.

    momentum: m of u <- m u + g, in [0, 1). 0.9 is usual.
    masking: forget the velocity of an entry when it is sent (momentum factor masking), which keeps old
        directions from being applied late. Then an entry has momentum only while it waits: at density 1
        nothing waits, and training is SGD without momentum. Without masking it is SGD with momentum there.
    allow_double_momentum: do not refuse an optimizer that has momentum (or betas) of its own.

    Raises ConfigurationError if a field is out of range.
    """

    momentum: float = 0.9
    masking: bool = True
    allow_double_momentum: bool = False

    def __post_init__(self) -> None:
        if not is_number(self.momentum) or not 0 <= self.momentum < 1:
            raise ConfigurationError(
                f"MomentumCorrection: momentum={self.momentum!r} must be a number in [0, 1)"
            )
        for name in ("masking", "allow_double_momentum"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(
                    f"MomentumCorrection: {name}={getattr(self, name)!r} must be True or False"
                )


class Velocity(DoubleBuffered):
    """u of one tensor, as a transaction per step: ``advance``, ``update``, then commit or rollback.

    Memory: two buffers of N elements.
    """

    def __init__(
        self,
        momentum: float,
        elements: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(elements, dtype, device)
        self._momentum = momentum

    def advance(self, gradient: Tensor, unscale: float = 1.0) -> Tensor:
        """Return u = momentum * u + gradient * unscale ([N], flat), pending once ``update`` is called.

        The result is a buffer of this object, valid until the next ``advance``. ``gradient`` may have any
        shape of N elements, any strides and floating-point dtype; it is not mutated. Products and sum are
        rounded one after the other.
        """
        self._open = False
        return add_scaled(self._committed, self._momentum, gradient.detach(), unscale, self._pending)

    def update(self, indices: Tensor | None = None) -> None:
        """Note what ``advance`` returned as the next velocity, zero at ``indices`` (int64 [K]), if given."""
        if indices is not None:
            self._pending.index_fill_(0, indices, 0.0)
        self._open = True

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"velocity": [N]}``, a copy of the committed velocity."""
        return {"velocity": self._committed.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the velocity by a saved one and drop a pending step; the state is copied.

        Raises ConfigurationError, changing nothing, if the state is not a finite tensor [N] of this dtype.
        """
        self._replace(self._saved(state, "velocity"))

    def require_fitting(self, state: dict[str, Any]) -> None:
        """Raise ConfigurationError if ``load_state_dict`` would refuse the state."""
        self._saved(state, "velocity")


class MomentumFeedback:
    """Error feedback over velocities instead of gradients; wraps any other error feedback.

    1. u <- momentum * u + gradient * unscale.
    2. The inner feedback accumulates u, and keeps what is not sent.
    3. With masking, u becomes 0 where entries are sent.

    Conservation: what was sent plus the residual is the sum of all velocities.
    """

    def __init__(
        self, inner: ErrorFeedback, correction: MomentumCorrection, elements: int, device: torch.device | str
    ) -> None:
        self._inner = inner
        self._masking = correction.masking
        self._velocity = Velocity(correction.momentum, elements, device)

    @property
    def owns_accumulated(self) -> bool:
        """See :class:`gradsieve.residual.ErrorFeedback`."""
        return self._inner.owns_accumulated

    def begin(self, gradient: Tensor, unscale: float = 1.0) -> Accumulated:
        """Return the accumulated velocity; see :class:`gradsieve.residual.ErrorFeedback`."""
        return self._inner.begin(self._velocity.advance(gradient, unscale))

    def update(self, selection: Selection) -> None:
        """See :class:`gradsieve.residual.ErrorFeedback`."""
        self._inner.update(selection)
        self._velocity.update(selection.indices if self._masking else None)

    def leave(self, rest: Tensor | None) -> None:
        """See :class:`gradsieve.residual.ErrorFeedback`. With masking all velocities are forgotten."""
        self._inner.leave(rest)
        self._velocity.update(self._everywhere() if self._masking else None)

    def _everywhere(self) -> Tensor:
        return torch.arange(self._velocity.elements, device=self._velocity.device)

    def reclaim(self, rejected: SparseGradient) -> None:
        """See :class:`gradsieve.residual.ErrorFeedback`. Velocities that were forgotten stay forgotten."""
        self._inner.reclaim(rejected)

    def commit(self) -> None:
        """Make the step final."""
        self._inner.commit()
        self._velocity.commit()

    def rollback(self) -> None:
        """Undo the step, bit for bit."""
        self._inner.rollback()
        self._velocity.rollback()

    def waiting(self) -> float:
        """See :class:`gradsieve.residual.ErrorFeedback`."""
        return self._inner.waiting()

    def state_dict(self) -> dict[str, Any]:
        """Return the inner state and ``velocity``."""
        return {**self._inner.state_dict(), **self._velocity.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state; raises ConfigurationError, changing nothing, if it does not fit."""
        self._velocity.require_fitting(state)
        self._inner.load_state_dict({key: value for key, value in state.items() if key != "velocity"})
        self._velocity.load_state_dict(state)
