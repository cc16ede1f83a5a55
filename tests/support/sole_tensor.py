"""One tensor that is compressed by itself: the engine's layer with a policy that serves no other."""

from __future__ import annotations

from typing import Any

import torch

from gradsieve import CompressionConfig, ConfigurationError, Decision, LayerPolicy, Outcome, Policy, Refusal
from gradsieve.policies.state import require_fields
from gradsieve_hvd.engine.compressed_layer import CompressedLayer


class SoleLayer:
    """A policy's only layer, which ends the policy's steps together with its own."""

    def __init__(self, policy: Policy, name: str, elements: int) -> None:
        self.policy = policy
        self._layer = policy.layer(name, elements)
        self._open = False

    def decide(self, step: int) -> Decision:
        self._open = True
        return self._layer.decide(step)

    def observe(self, outcome: Outcome) -> None:
        self._layer.observe(outcome)

    def commit(self) -> None:
        self._layer.commit()
        if self._open:
            self.policy.commit()
        self._open = False

    def rollback(self) -> None:
        self._layer.rollback()
        self.policy.rollback()
        self._open = False

    def state_dict(self) -> dict[str, Any]:
        return {"layer": self._layer.state_dict(), "model": self.policy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        require_fields(state, "layer", "model")
        before = self.policy.state_dict()
        self.policy.load_state_dict(state["model"])
        try:
            self._layer.load_state_dict(state["layer"])
        except ConfigurationError:
            self.policy.load_state_dict(before)
            raise


class SoleTensor(CompressedLayer):
    """Goes from gradient to payload at once, as the drop-in does.

    refused: whether the last gradient was.
    """

    def __init__(
        self,
        config: CompressionConfig,
        elements: int,
        device: torch.device | str = "cpu",
        name: str = "tensor",
        policy: LayerPolicy | None = None,
    ) -> None:
        super().__init__(config, elements, device, name, policy or SoleLayer(config.policy(), name, elements))
        self.refused = False

    def compress(self, gradient: torch.Tensor, *, step: int, unscale: float = 1.0) -> torch.Tensor:
        sent = self.select(gradient, step=step, unscale=unscale)
        self.refused = isinstance(sent, Refusal)
        return self.encode(sent)
