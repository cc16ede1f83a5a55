"""One tensor's way from gradient to payload."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradsieve.codec import ValueDtype, encode, encode_refusal, sent_values
from gradsieve.config import CompressionConfig
from gradsieve.errors import ConfigurationError
from gradsieve.kernels.magnitude import all_finite
from gradsieve.policies import LayerPolicy, Outcome
from gradsieve.policies import state as saved
from gradsieve.policies.energy import kept_energy_gain
from gradsieve.policies.sole import SoleLayer
from gradsieve.selection import Selection, Selector
from gradsieve.sparse_gradient import SparseGradient


class LayerCompressor:
    """Compresses one tensor's gradients, step by step; every step ends with ``commit`` or ``rollback``.

    policy: this layer's part of the optimizer's policy, which says how much is sent; None makes the
        configuration's own, for a tensor that is compressed by itself.
    selector: what chooses entries; None makes the configuration's own.

    refused: whether the last gradient was refused because it, or its sum with the residual, is not finite.
    kept: how many entries the last payload carries.
    density: what the policy asked for, in (0, 1].
    threshold: magnitude that the next selection starts from, in unscaled gradient units; None at first.
    """

    def __init__(
        self,
        config: CompressionConfig,
        elements: int,
        device: torch.device | str = "cpu",
        name: str = "tensor",
        policy: LayerPolicy | None = None,
        selector: Selector | None = None,
    ) -> None:
        self._config = config
        self._selector = selector or config.selector()
        self._policy = policy or SoleLayer(config.policy(), name, elements)
        self._feedback = config.feedback(elements, device)
        self._elements = elements
        self._name = name
        self._next_threshold: float | None = None
        self.threshold: float | None = None
        self.refused = False
        self.kept = 0
        self.density = 0.0

    def compress(self, gradient: Tensor, *, step: int, unscale: float = 1.0) -> Tensor:
        """Return the payload (uint8 [bytes], CPU) for ``gradient`` (N elements, any shape, not mutated).

        It holds what `select` would return, rounded to the configuration's type of values, or is a refusal.

        Raises ConfigurationError if the gradient has another number of elements.
        """
        selection = self._select(gradient, step, unscale, self._config.value_dtype)
        if selection is None:
            return encode_refusal(self._elements)
        return encode(selection, self._elements, self._config.value_dtype)

    def select(self, gradient: Tensor, *, step: int, unscale: float = 1.0) -> SparseGradient | None:
        """Return what is to be sent of ``gradient`` (N elements, any shape, not mutated), None for a refusal.

        Values are unscaled. All that is selected counts as sent, but for what comes back by `reclaim`.

        Raises ConfigurationError if the gradient has another number of elements.
        """
        selection = self._select(gradient, step, unscale, "float32")
        return None if selection is None else SparseGradient.of(selection, self._elements)

    def _select(
        self, gradient: Tensor, step: int, unscale: float, value_dtype: ValueDtype
    ) -> Selection | None:
        """Return what is to be sent as values of a type, None for a refusal.

        1. Ask the policy how much to send in ``step``.
        2. Add the residual to ``gradient * unscale``.
        3. Select entries, with the last threshold unless the policy wants it found anew.
        4. If one is not finite, refuse; residual, threshold and policy stay as they were.
        5. Tell the policy what was selected.
        6. Leave the rest, and what rounding takes away, in the residual, pending until ``commit``.

        A step that was neither committed nor rolled back is rolled back first.
        """
        self._require_elements(gradient.numel())
        self.rollback()
        decision = self._policy.decide(step)
        accumulated = self._feedback.begin(gradient, unscale)
        warm = None if decision.reanchor else self.threshold
        selection = self._selector.select(accumulated, decision.density, warm)
        self.density = decision.density
        self.refused = not all_finite(selection.values)
        if self.refused:
            self.kept = 0
            return None
        self.kept = selection.indices.numel()
        gain = kept_energy_gain(selection.values, accumulated.tensor()) if decision.measure else None
        self._policy.observe(Outcome(self._elements, self.kept, selection.threshold, gain))
        self._feedback.keep(selection, sent_values(selection.values, value_dtype))
        self._next_threshold = selection.threshold
        return selection

    def reclaim(self, rejected: SparseGradient) -> None:
        """Take back what was selected in this step and did not arrive, or what a path dropped of a sum.

        rejected: unscaled, on the residual's device; not mutated.
        """
        self._feedback.reclaim(rejected)

    def abstain(self) -> Tensor:
        """Return a payload without entries, for a step that this tensor takes no part in: a frozen layer.

        Residual, threshold and policy stay as they are, whether the step is committed or rolled back.
        """
        self.rollback()
        self.refused = False
        self.kept = 0
        no_values = torch.empty(0, dtype=torch.float32, device="cpu")
        nothing = Selection(no_values.to(torch.int64), no_values, 0.0)
        return encode(nothing, self._elements, self._config.value_dtype)

    def waiting(self) -> float:
        """Return the L2 norm of what waits in the committed residual, in unscaled gradient units."""
        return self._feedback.waiting()

    def commit(self) -> None:
        """Make the step final: what was sent has arrived. Doing it twice changes nothing."""
        self._feedback.commit()
        self._policy.commit()
        self.threshold = self._next_threshold

    def rollback(self) -> None:
        """Undo the step, bit for bit. Doing it twice, or after ``commit``, changes nothing."""
        self._feedback.rollback()
        self._policy.rollback()
        self._next_threshold = self.threshold

    def state_dict(self) -> dict[str, Any]:
        """Return the committed state: elements, threshold, the feedback's and the policy's own (copies)."""
        return {
            "elements": self._elements,
            "threshold": self.threshold,
            "feedback": self._feedback.state_dict(),
            "policy": self._policy.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state and drop a pending step; the state is copied.

        Raises ConfigurationError, changing nothing, if it is not a state of a tensor of this size, or was
        saved with other settings.
        """
        try:
            saved.require_fields(state, "elements", "threshold", "feedback", "policy")
            threshold, elements = saved.number_or_none(state, "threshold"), saved.count(state, "elements")
            feedback, policy = saved.mapping(state, "feedback"), saved.mapping(state, "policy")
        except ConfigurationError as error:
            raise ConfigurationError(f"state of '{self._name}': {error}") from error
        if elements != self._elements:
            raise ConfigurationError(
                f"state of '{self._name}': field 'elements': found {elements}, expected {self._elements}; "
                "load the state of the same model"
            )
        before = self._policy.state_dict()
        try:
            self._policy.load_state_dict(dict(policy))
            self._feedback.load_state_dict(dict(feedback))
        except ConfigurationError as error:
            self._policy.load_state_dict(before)
            raise ConfigurationError(f"state of '{self._name}': {error}") from error
        self.threshold = self._next_threshold = threshold

    def _require_elements(self, elements: int) -> None:
        if elements != self._elements:
            raise ConfigurationError(
                f"'{self._name}': the gradient has {elements} elements, expected {self._elements}; "
                "a compressor serves one tensor"
            )
