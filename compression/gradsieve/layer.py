"""One tensor's way from gradient to payload."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradsieve.codec import encode, encode_refusal, sent_values
from gradsieve.config import CompressionConfig
from gradsieve.errors import ConfigurationError
from gradsieve.kernels.magnitude import all_finite
from gradsieve.residual import ErrorFeedback, NoResidual, Residual


class LayerCompressor:
    """Compresses one tensor's gradients, step by step; every step ends with ``commit`` or ``rollback``.

    refused: whether the last gradient was refused because it, or its sum with the residual, is not finite.
    kept: how many entries the last payload carries.
    """

    def __init__(
        self,
        config: CompressionConfig,
        elements: int,
        device: torch.device | str = "cpu",
        name: str = "tensor",
    ) -> None:
        self._config = config
        self._selector = config.selector()
        self._residual: ErrorFeedback = Residual(elements, device) if config.error_feedback else NoResidual()
        self._elements = elements
        self._name = name
        self._threshold: float | None = None
        self._next_threshold: float | None = None
        self.refused = False
        self.kept = 0

    def compress(self, gradient: Tensor, *, step: int, unscale: float = 1.0) -> Tensor:
        """Return the payload (uint8 [bytes], CPU) for ``gradient`` (N elements, any shape, not mutated).

        1. Add the residual to ``gradient * unscale``.
        2. Select entries at the density of ``step``.
        3. If one is not finite, return a refusal; residual and threshold stay as they were.
        4. Leave the rest in the residual, pending until ``commit``.
        5. Encode. Values on the wire are unscaled.

        A step that was neither committed nor rolled back is rolled back first.

        Raises ConfigurationError if the gradient has another number of elements.
        """
        self._require_elements(gradient.numel())
        self.rollback()
        accumulated = self._residual.begin(gradient, unscale)
        selection = self._selector.select(accumulated, self._config.density_at(step), self._threshold)
        self.refused = not all_finite(selection.values)
        if self.refused:
            self.kept = 0
            return encode_refusal(self._elements)
        self._residual.keep(selection, sent_values(selection.values, self._config.value_dtype))
        self._next_threshold = selection.threshold
        self.kept = selection.indices.numel()
        return encode(selection, self._elements, self._config.value_dtype)

    def commit(self) -> None:
        """Make the step final: what was sent has arrived. Doing it twice changes nothing."""
        self._residual.commit()
        self._threshold = self._next_threshold

    def rollback(self) -> None:
        """Undo the step, bit for bit. Doing it twice, or after ``commit``, changes nothing."""
        self._residual.rollback()
        self._next_threshold = self._threshold

    def state_dict(self) -> dict[str, Any]:
        """Return the committed state: elements, threshold, and the residual's own (a copy)."""
        return {
            "elements": self._elements,
            "threshold": self._threshold,
            "feedback": self._residual.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state and drop a pending step; the state is copied.

        Raises ConfigurationError, changing nothing, if it is not a state of a tensor of this size.
        """
        try:
            elements, threshold, feedback = state["elements"], state["threshold"], state["feedback"]
        except KeyError as error:
            raise ConfigurationError(f"state of '{self._name}': field {error} is missing") from None
        if elements != self._elements:
            raise ConfigurationError(
                f"state of '{self._name}': field 'elements': found {elements}, expected {self._elements}; "
                "load the state of the same model"
            )
        try:
            self._residual.load_state_dict(feedback)
        except ConfigurationError as error:
            raise ConfigurationError(f"state of '{self._name}': {error}") from error
        self._threshold = self._next_threshold = threshold

    def _require_elements(self, elements: int) -> None:
        if elements != self._elements:
            raise ConfigurationError(
                f"'{self._name}': the gradient has {elements} elements, expected {self._elements}; "
                "a compressor serves one tensor"
            )
