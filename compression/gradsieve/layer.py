"""What is sent of one tensor's gradients, and what of them waits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradsieve.codec import Refusal
from gradsieve.config import CompressionConfig
from gradsieve.errors import ConfigurationError
from gradsieve.kernels.magnitude import all_finite
from gradsieve.policies import Decision, Outcome
from gradsieve.policies import state as saved
from gradsieve.policies.energy import kept_energy_gain
from gradsieve.residual import ErrorFeedback
from gradsieve.selection import Selector
from gradsieve.sparse_gradient import SparseGradient


class LayerCompressor:
    """Selects from one tensor's gradients, step by step; every step ends with ``commit`` or ``rollback``.

    How much is for the caller to say, by a decision, and how the entries travel: `gradsieve.encode_rounded`
    makes them a payload.

    selector, residual: what chooses entries, and what keeps the others; None makes the configuration's own.

    feedback: what keeps the residual.
    outcome: what became of the last decision; None if nothing was selected (a refusal, an abstention).
    threshold: magnitude that the next selection starts from, in unscaled gradient units; None at first.
    """

    def __init__(
        self,
        config: CompressionConfig,
        elements: int,
        device: torch.device | str = "cpu",
        name: str = "tensor",
        selector: Selector | None = None,
        residual: ErrorFeedback | None = None,
    ) -> None:
        self._selector = selector or config.selector()
        self.feedback = residual or config.feedback(elements, device)
        self._elements = elements
        self._device = device
        self._name = name
        self._next_threshold: float | None = None
        self.threshold: float | None = None
        self.outcome: Outcome | None = None

    def select(
        self, gradient: Tensor, decision: Decision, *, unscale: float = 1.0
    ) -> SparseGradient | Refusal:
        """Return what is to be sent of ``gradient`` (N elements, any shape, not mutated), on its device, or
        why nothing is.

        1. Add the residual to ``gradient * unscale``.
        2. Select entries, with the last threshold unless the decision wants it found again.
        3. If one is not finite, refuse; residual and threshold stay as they were.
        4. Leave the rest in the residual, pending until ``commit``. All that is selected counts as sent, but
           for what comes back by `reclaim`.

        Values are unscaled. A step that was neither committed nor rolled back is rolled back first.

        Raises ConfigurationError if the gradient has another number of elements.
        """
        self._require_elements(gradient.numel())
        self.rollback()
        accumulated = self.feedback.begin(gradient, unscale)
        previous_threshold = None if decision.refresh_threshold else self.threshold
        selection = self._selector.select(accumulated, decision.density, previous_threshold)
        if not all_finite(selection.values):
            return Refusal.NON_FINITE
        kept = selection.indices.numel()
        gain = kept_energy_gain(selection.values, accumulated.tensor()) if decision.measure else None
        self.outcome = Outcome(self._elements, kept, selection.threshold, gain)
        self.feedback.update(selection)
        self._next_threshold = selection.threshold
        return SparseGradient.of(selection, self._elements)

    def reclaim(self, rejected: SparseGradient) -> None:
        """Take back what was selected in this step and does not arrive: what rounding takes away, or a path
        drops of a sum.

        rejected: unscaled, on the residual's device; not mutated.
        """
        self.feedback.reclaim(rejected)

    def abstain(self) -> SparseGradient:
        """Return no entries, for a step that this tensor takes no part in: a frozen layer.

        Residual and threshold stay as they are, whether the step is committed or rolled back.
        """
        self.rollback()
        return SparseGradient.nothing(self._elements, self._device)

    def waiting(self) -> float:
        """Return the L2 norm of what waits in the committed residual, in unscaled gradient units."""
        return self.feedback.waiting()

    def commit(self) -> None:
        """Make the step final: what was sent has arrived. Doing it twice changes nothing."""
        self.feedback.commit()
        self.threshold = self._next_threshold

    def rollback(self) -> None:
        """Undo the step, bit for bit. Doing it twice, or after ``commit``, changes nothing."""
        self.feedback.rollback()
        self._next_threshold = self.threshold
        self.outcome = None

    def state_dict(self) -> dict[str, Any]:
        """Return the committed state: elements, threshold and the feedback's own (copies)."""
        return {
            "elements": self._elements,
            "threshold": self.threshold,
            "feedback": self.feedback.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state and drop a pending step; the state is copied.

        Raises ConfigurationError, changing nothing, if it is not a state of a tensor of this size, or was
        saved with other settings.
        """
        try:
            saved.require_fields(state, "elements", "threshold", "feedback")
            threshold = saved.number_or_none(state, "threshold")
            self._require_saved_elements(saved.count(state, "elements"))
            self.feedback.load_state_dict(dict(saved.mapping(state, "feedback")))
        except ConfigurationError as error:
            raise ConfigurationError(f"state of '{self._name}': {error}") from error
        self.threshold = self._next_threshold = threshold

    def _require_saved_elements(self, elements: int) -> None:
        if elements != self._elements:
            raise ConfigurationError(
                f"field 'elements': found {elements}, expected {self._elements}; load the state of the same "
                "model"
            )

    def _require_elements(self, elements: int) -> None:
        if elements != self._elements:
            raise ConfigurationError(
                f"'{self._name}': the gradient has {elements} elements, expected {self._elements}; "
                "a compressor serves one tensor"
            )
