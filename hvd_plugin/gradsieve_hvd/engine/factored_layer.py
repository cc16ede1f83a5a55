"""One matrix's way to an exchange of low rank and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradsieve import CompressionConfig
from gradsieve.errors import ConfigurationError
from gradsieve.policies import state as saved

from .whole_feedback import WholeFeedback


class FactoredLayer:
    """What one rank keeps of a matrix whose gradients travel as two thin factors (PowerSGD).

    A step is ``begin`` or ``abstain``, and ``end``, of `whole`, then `keep`, then ``commit`` or ``rollback``.

    Args:
        config: how its residual is kept.
        name: stands in errors.
        elements: N, of the matrix.
        device: the gradient's.
        factor_shape: of the factor that is kept, (R, m).

    whole: what is sent of it, and comes back.
    factor: fp32 [R, m] on the CPU, what the next exchange begins with, the same on all ranks; None before the
        first one.
    """

    def __init__(
        self,
        config: CompressionConfig,
        name: str,
        elements: int,
        device: torch.device | str,
        factor_shape: tuple[int, int],
    ) -> None:
        self._feedback = config.feedback(elements, device)
        self._name, self._elements, self._shape = name, elements, factor_shape
        self.whole = WholeFeedback(self._feedback, elements, device)
        self.factor: Tensor | None = None
        self._next_factor: Tensor | None = None

    def keep(self, factor: Tensor) -> None:
        """Begin the next exchange with this factor, after ``commit``."""
        self._next_factor = factor

    def waiting(self) -> float:
        """Return the L2 norm of what waits in the committed residual, in unscaled gradient units."""
        return self._feedback.waiting()

    def commit(self) -> None:
        """Make the step final. Doing it twice changes nothing."""
        self._feedback.commit()
        self.factor = self._next_factor

    def rollback(self) -> None:
        """Undo the step, bit for bit. Doing it twice, or after ``commit``, changes nothing."""
        self._feedback.rollback()
        self._next_factor = self.factor

    def state_dict(self) -> dict[str, Any]:
        """Return the committed state: elements, the feedback's own, the factor (copies)."""
        return {
            "elements": self._elements,
            "feedback": self._feedback.state_dict(),
            "factor": None if self.factor is None else self.factor.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state and drop a pending step; the state is copied.

        Raises:
            ConfigurationError: it is not of such a matrix, or of another rank; nothing was changed.
        """
        saved.require_fields(state, "elements", "feedback", "factor")
        elements, factor = saved.count(state, "elements"), state["factor"]
        if elements != self._elements:
            raise ConfigurationError(
                f"state of '{self._name}': field 'elements': found {elements}, expected {self._elements}; "
                "load the state of the same model"
            )
        shape = None if factor is None else (*factor.shape,) if isinstance(factor, Tensor) else type(factor)
        if shape not in (None, self._shape):
            raise ConfigurationError(
                f"state of '{self._name}': field 'factor': found {shape}, expected {self._shape}; use the "
                "rank that it was saved with"
            )
        self._feedback.load_state_dict(dict(saved.mapping(state, "feedback")))
        own = None if factor is None else factor.to("cpu", torch.float32, copy=True)
        self.factor = self._next_factor = own
