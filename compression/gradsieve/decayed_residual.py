"""Error feedback that forgets: what waits becomes less before every new gradient is added."""

from __future__ import annotations

import torch
from torch import Tensor

from gradsieve.accumulated import Accumulated
from gradsieve.kernels import accumulate
from gradsieve.residual import Residual


class DecayedResidual(Residual):
    """One tensor's residual, multiplied by ``decay`` at every step.

    It obeys another conservation law than `Residual`: all that was given is what was sent, what was forgotten
    ((1 - decay) of the residual at every step) and the residual.

    Args:
        elements: of the tensor.
        device: of the tensor.
        decay: in (0, 1].
    """

    def __init__(self, elements: int, device: torch.device | str = "cpu", *, decay: float) -> None:
        super().__init__(elements, device)
        self._decay = decay

    def begin(self, gradient: Tensor, unscale: float = 1.0) -> Accumulated:
        """Return a = decay * residual + gradient * unscale, flat; see `Residual.begin`."""
        self.rollback()
        given = gradient.detach().reshape(-1).to(torch.float32).contiguous()
        given = given if unscale == 1.0 else given * unscale
        self._accumulated = accumulate(self._committed, self._decay, given, self._pending)
        return self._accumulated
