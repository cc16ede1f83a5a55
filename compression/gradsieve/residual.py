"""Error feedback: what was not sent stays, and is added to the next gradient.

One convention: a residual holds raw gradient mass, unscaled (loss scales divided out, learning rate not
applied). It obeys a conservation law: the sum of all that was sent plus the residual is the sum of all that
was given.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from gradsieve.accumulated import Accumulated
from gradsieve.double_buffered import DoubleBuffered
from gradsieve.errors import ConfigurationError
from gradsieve.kernels import accumulate, add_entries, as_accumulated
from gradsieve.policies.state import require_fields
from gradsieve.selection import Selection
from gradsieve.sparse_gradient import SparseGradient

OTHER_DTYPE = "; use the residual_dtype that it was saved with"


class ErrorFeedback(Protocol):
    """A transaction per step: begin, update, reclaim, then commit or rollback.

    owns_accumulated: whether what ``begin`` returns lies in memory of its own until the step ends, so that it
    may be overwritten with what ``leave`` is given.
    """

    @property
    def owns_accumulated(self) -> bool:
        """See above."""
        ...

    def begin(self, gradient: Tensor, unscale: float = 1.0) -> Accumulated:
        """Return the accumulated gradient; ``gradient`` is not mutated, and must not be before ``update``."""
        ...

    def update(self, selection: Selection) -> None:
        """Note that all that is selected of the accumulated gradient is on its way."""
        ...

    def leave(self, rest: Tensor | None) -> None:
        """Note that all of the accumulated gradient is on its way but for ``rest`` (fp32 [N], copied, unless
        it was written where ``begin`` had put the accumulated gradient).

        None stands for nothing.
        """
        ...

    def reclaim(self, rejected: SparseGradient) -> None:
        """Take back what does not arrive of it, such as what rounding takes away; after ``update``, before
        the end.

        Where nothing was begun, as the tensor takes no part, it is what the way dropped of the others' sum.
        """
        ...

    def commit(self) -> None:
        """Make the step final."""
        ...

    def rollback(self) -> None:
        """Undo the step."""
        ...

    def waiting(self) -> float:
        """Return the L2 norm of the committed residual."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a checkpoint."""
        ...


class Residual(DoubleBuffered):
    """One tensor's residual.

    Memory: two fp32 buffers of N elements.
    """

    owns_accumulated = True

    def __init__(self, elements: int, device: torch.device | str = "cpu") -> None:
        super().__init__(elements, torch.float32, device)
        self._accumulated = as_accumulated(self._pending)

    def begin(self, gradient: Tensor, unscale: float = 1.0) -> Accumulated:
        """Return a = gradient * unscale + residual, flat in row-major order of the gradient's shape.

        It is made in a buffer of this object: valid until the next ``begin``, changed by ``update``.
        ``gradient`` may have any shape of N elements, any strides, fp16, bf16 or fp32; it is not mutated, and
        must not be before ``update``. A step that was neither committed nor rolled back is rolled back.
        """
        self.rollback()
        self._accumulated = accumulate(gradient.detach(), unscale, self._committed, self._pending)
        return self._accumulated

    def update(self, selection: Selection) -> None:
        """Leave in the pending residual what is not selected."""
        self._accumulated.subtract_sent(selection)
        self._open = True

    def leave(self, rest: Tensor | None) -> None:
        """Make ``rest`` the pending residual."""
        if rest is None:
            self._pending.zero_()
        elif rest is not self._pending:
            self._pending.copy_(rest)
        self._open = True

    def reclaim(self, rejected: SparseGradient) -> None:
        """Add what did not arrive to the pending residual."""
        self._open_unchanged()
        add_entries(self._pending, rejected.indices, rejected.values)

    def waiting(self) -> float:
        """Return the L2 norm of the committed residual."""
        return float(self._committed.norm())

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"residual": fp32 [N]}``, a copy of the committed residual."""
        return {"residual": self._committed.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the residual by a saved one and drop a pending step; the state is copied.

        Raises ConfigurationError, changing nothing, if the state is not a finite fp32 tensor [N], or holds
        the velocity of momentum correction, which a residual alone would lose.
        """
        if "velocity" in state:
            raise ConfigurationError(
                "field 'velocity': found, but this compressor has no momentum correction and would lose it; "
                "pass momentum=MomentumCorrection(...) as when it was saved, or remove the field to start "
                "without velocity"
            )
        require_fields(state, "residual")
        self._replace(self._saved(state, "residual", OTHER_DTYPE))


class NoResidual:
    """Error feedback switched off (the null object): what is not sent is lost, nothing is kept or saved."""

    owns_accumulated = False  # it may be the gradient itself

    def begin(self, gradient: Tensor, unscale: float = 1.0) -> Accumulated:
        """Return ``gradient * unscale``, flat; in the gradient's own memory where nothing has to change."""
        flat = gradient.detach().reshape(-1).to(torch.float32).contiguous()
        return as_accumulated(flat if unscale == 1.0 else flat * unscale)

    def update(self, selection: Selection) -> None:
        """Do nothing."""

    def leave(self, rest: Tensor | None) -> None:
        """Do nothing."""

    def reclaim(self, rejected: SparseGradient) -> None:
        """Do nothing."""

    def commit(self) -> None:
        """Do nothing."""

    def rollback(self) -> None:
        """Do nothing."""

    def waiting(self) -> float:
        """Return 0: nothing waits."""
        return 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Accept an empty state; raises ConfigurationError for one that holds a residual."""
        if state:
            raise ConfigurationError(
                f"field {next(iter(state))!r}: found, but error_feedback=False keeps no residual; "
                "switch error feedback on, or start without this state"
            )
