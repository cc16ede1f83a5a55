"""Error feedback in half the memory: a residual in bf16, rounded once per step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradsieve.accumulated import Accumulated
from gradsieve.double_buffered import DoubleBuffered
from gradsieve.kernels import accumulate, as_accumulated
from gradsieve.kernels.scratch import borrow
from gradsieve.policies.state import require_fields
from gradsieve.residual import OTHER_DTYPE
from gradsieve.selection import Selection
from gradsieve.sparse_gradient import SparseGradient

_LARGEST = torch.finfo(torch.bfloat16).max


class RoundedResidual(DoubleBuffered):
    """One tensor's residual in bf16; see :class:`gradsieve.residual.ErrorFeedback`.

    Memory: two bf16 buffers of N elements, 4 bytes per element instead of 8, and for each thread two fp32
    buffers as long as the largest tensor. A step passes three times more over the elements.

    What rounding costs: the residual is rounded to the nearest bf16 in each step, by at most 2^-8 of each
    element. So the conservation law holds up to that, and a gradient below 2^-8 of what its element has
    accumulated is lost: equal gradients stop adding up after some 256 steps, so densities far below 1 %,
    where elements wait longer, lose more. What that does to accuracy was not measured. Magnitudes above
    bf16's largest (3.39e38) are held there.
    """

    owns_accumulated = False

    def __init__(self, elements: int, device: torch.device | str = "cpu") -> None:
        super().__init__(elements, torch.bfloat16, device)
        self._accumulated = as_accumulated(torch.empty(0, dtype=torch.float32, device=device))

    def begin(self, gradient: Tensor, unscale: float = 1.0) -> Accumulated:
        """Return a = gradient * unscale + residual, in fp32 and flat; see :meth:`Residual.begin`.

        It is made in the thread's work space: valid until the next ``begin`` of any such residual.
        """
        self.rollback()
        elements, device = self._committed.numel(), self._committed.device
        residual = borrow(elements, "residual", device).copy_(self._committed)
        total = borrow(elements, "sum", device)
        self._accumulated = accumulate(gradient.detach(), unscale, residual, total)
        return self._accumulated

    def update(self, selection: Selection) -> None:
        """Leave in the pending residual, rounded, what is not selected; see :meth:`Residual.update`."""
        self._accumulated.subtract_sent(selection)
        self._pending.copy_(self._accumulated.tensor().clamp_(-_LARGEST, _LARGEST))
        self._open = True

    def leave(self, rest: Tensor | None) -> None:
        """Make ``rest``, rounded, the pending residual."""
        if rest is None:
            self._pending.zero_()
        else:
            self._pending.copy_(rest.clamp(-_LARGEST, _LARGEST))
        self._open = True

    def reclaim(self, rejected: SparseGradient) -> None:
        """Add what did not arrive to the pending residual, rounded."""
        self._open_unchanged()
        total = self._pending[rejected.indices].float() + rejected.values
        self._pending[rejected.indices] = total.clamp_(-_LARGEST, _LARGEST).to(torch.bfloat16)

    def waiting(self) -> float:
        """Return the L2 norm of the committed residual."""
        return float(self._committed.float().norm())

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"residual": bf16 [N]}``, a copy of the committed residual."""
        return {"residual": self._committed.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the residual by a saved one and drop a pending step; the state is copied.

        Raises ConfigurationError, changing nothing, if the state is not a finite bf16 tensor [N].
        """
        require_fields(state, "residual")
        self._replace(self._saved(state, "residual", OTHER_DTYPE))
