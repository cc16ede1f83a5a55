"""One parameter's compressor, together with its part of the policy, which decides how much is sent."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from gradsieve import (
    CompressionConfig,
    LayerCompressor,
    LayerPolicy,
    Refusal,
    SparseGradient,
    encode_refusal,
    encode_rounded,
)
from gradsieve.errors import ConfigurationError
from gradsieve.policies import state as saved
from gradsieve.policies.energy import norm

from .whole_feedback import WholeFeedback

_TINY = 1e-30


class CompressedLayer:
    """What a rank keeps of a parameter whose gradients are compressed; a step ends by ``commit`` or
    ``rollback``, of the policy as a whole afterwards.

    Args:
        config: how it is compressed.
        elements, device, name: the parameter's.
        policy: this layer's part of the optimizer's policy.

    density: what the policy asked for last, in (0, 1]. whole: for steps in which everything is sent.
    energies: squared norms of what was selected and of all there was, when that was last measured; None if it
    never was.
    """

    def __init__(
        self,
        config: CompressionConfig,
        elements: int,
        device: torch.device | str,
        name: str,
        policy: LayerPolicy,
    ) -> None:
        self._config, self._elements, self._name, self._policy = config, elements, name, policy
        self._compressor = LayerCompressor(config, elements, device, name)
        self.whole = WholeFeedback(self._compressor.feedback, elements, device)
        self.density = 0.0
        self.energies: tuple[float, float] | None = None

    @property
    def kept(self) -> int:
        """How many entries were selected last."""
        outcome = self._compressor.outcome
        return 0 if outcome is None else outcome.kept

    @property
    def threshold(self) -> float | None:
        """See `gradsieve.LayerCompressor`."""
        return self._compressor.threshold

    def select(
        self, gradient: Tensor, *, step: int, unscale: float = 1.0, measure: bool = False
    ) -> SparseGradient | Refusal:
        """Return what is to be sent of ``gradient`` in an optimizer step, or why nothing is.

        1. Drop a step that did not end.
        2. Ask the policy how much.
        3. Select; see `gradsieve.LayerCompressor.select`.
        4. Tell the policy what came of it, unless the gradient was refused.

        measure: note `energies`, also where the policy does not ask for them; it costs a pass over the layer.

        Raises:
            ConfigurationError: the gradient has another number of elements.
        """
        self._policy.rollback()
        decision = self._policy.decide(step)
        asked = dataclasses.replace(decision, measure=True) if measure else decision
        sent = self._compressor.select(gradient, asked, unscale=unscale)
        self.density = decision.density
        outcome = self._compressor.outcome
        if outcome is not None and isinstance(sent, SparseGradient):
            if outcome.gain is not None:
                selected = norm(sent.values) ** 2
                self.energies = selected, selected / max(outcome.gain, _TINY) ** 2
            unasked = outcome.gain is not None and not decision.measure
            self._policy.observe(dataclasses.replace(outcome, gain=None) if unasked else outcome)
        return sent

    def note_density(self, step: int) -> None:
        """Ask the policy what it would have sent in a step in which everything is; it is told nothing."""
        self.rollback()
        self.density = self._policy.decide(step).density
        self._policy.rollback()

    def encode(self, sent: SparseGradient | Refusal) -> Tensor:
        """Return what was selected, or the refusal, as a payload (uint8 [bytes], CPU); what rounding takes
        away stays in the residual.
        """
        if isinstance(sent, Refusal):
            return encode_refusal(self._elements, sent)
        payload, rounding = encode_rounded(sent, self._config.value_dtype)
        if rounding.count:
            self.reclaim(rounding)
        return payload

    def abstain(self) -> SparseGradient:
        """Return no entries, for a step that this layer takes no part in; see
        `gradsieve.LayerCompressor.abstain`.
        """
        self._policy.rollback()
        return self._compressor.abstain()

    def reclaim(self, rejected: SparseGradient) -> None:
        """See `gradsieve.LayerCompressor.reclaim`."""
        self._compressor.reclaim(rejected)

    def waiting(self) -> float:
        """See `gradsieve.LayerCompressor.waiting`."""
        return self._compressor.waiting()

    def commit(self) -> None:
        """Make the step final. Doing it twice changes nothing."""
        self._compressor.commit()
        self._policy.commit()

    def rollback(self) -> None:
        """Undo the step, bit for bit. Doing it twice, or after ``commit``, changes nothing."""
        self._compressor.rollback()
        self._policy.rollback()

    def state_dict(self) -> dict[str, Any]:
        """Return the committed state (copies): the compressor's, and ``policy``."""
        return {**self._compressor.state_dict(), "policy": self._policy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state and drop a pending step; the state is copied.

        Raises:
            ConfigurationError: it is not a state of a layer of this size, or was saved with other settings.
                Nothing changes.
        """
        before = self._policy.state_dict()
        try:
            saved.require_fields(state, *self._compressor.state_dict(), "policy")
            self._policy.load_state_dict(dict(saved.mapping(state, "policy")))
        except ConfigurationError as error:
            raise ConfigurationError(f"state of '{self._name}': {error}") from error
        try:
            own = {field: value for field, value in state.items() if field != "policy"}
            self._compressor.load_state_dict(own)
        except ConfigurationError:
            self._policy.load_state_dict(before)
            raise
