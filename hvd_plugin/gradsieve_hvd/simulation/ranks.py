"""What one rank keeps and sends, without a network in between."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from gradsieve import (
    CompressionConfig,
    ImportanceConfig,
    LayerCompressor,
    LossRecorder,
    Policy,
    Velocity,
    decode,
)
from gradsieve.global_clipping import GlobalClipping

_DENSE_BYTES = 4  # per element


@dataclass
class SimulatedRank:
    """One rank's compressors, as a process of its own would have them.

    policy: None sends everything. clipping: of all gradients together, before they are accumulated. layers:
    a compressor per compressed parameter. velocities: of the other parameters, under momentum correction.
    recorder: where this rank's loss puts its samples'. Of the last step, sent_bytes: payloads with headers
    and dense gradients; payload_bytes: payloads alone.
    """

    policy: Policy | None = None
    clipping: GlobalClipping | None = None
    recorder: LossRecorder = field(default_factory=LossRecorder)
    layers: dict[str, LayerCompressor] = field(default_factory=dict)
    velocities: dict[str, Velocity] = field(default_factory=dict)
    sent_bytes: int = 0
    payload_bytes: int = 0

    @classmethod
    def of(cls, config: CompressionConfig | None, model: nn.Module) -> SimulatedRank:
        """Return a rank before its first step on ``model``; dense if ``config`` is None."""
        if config is None:
            return cls()
        recorder = LossRecorder()
        if isinstance(config, ImportanceConfig):  # of this rank's samples, not of all ranks'
            config = dataclasses.replace(config, recorder=recorder)
        policy = config.policy()
        rank = cls(policy, recorder=recorder)
        for name, parameter in model.named_parameters():
            elements = parameter.numel()
            if config.compresses(name, elements):
                part = policy.layer(name, elements)
                rank.layers[name] = LayerCompressor(config, elements, name=name, policy=part)
            elif config.momentum is not None:
                rank.velocities[name] = Velocity(config.momentum.momentum, elements)
        return rank

    def send(self, gradients: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        """Compress, arrive, commit: return what the others see of each gradient, in its shape.

        ``gradients`` are not mutated.
        """
        self.sent_bytes = self.payload_bytes = 0
        if self.clipping is not None:
            gradients = _clipped(gradients, self.clipping)
        arrived = {
            name: self._send(name, gradient, step).view(gradient.shape)
            for name, gradient in gradients.items()
        }
        if self.policy is not None:
            self.policy.commit()
        return arrived

    def _send(self, name: str, gradient: Tensor, step: int) -> Tensor:
        if name in self.layers:
            payload = self.layers[name].compress(gradient, step=step)
            self.layers[name].commit()
            self.sent_bytes += payload.numel()
            self.payload_bytes += payload.numel()
            arrived = torch.zeros(gradient.numel())
            decode(payload, gradient.numel()).add_into(arrived)
            return arrived
        self.sent_bytes += _DENSE_BYTES * gradient.numel()
        if name not in self.velocities:
            return gradient
        arrived = self.velocities[name].advance(gradient).clone()
        self.velocities[name].keep()
        self.velocities[name].commit()
        return arrived


def _clipped(gradients: Mapping[str, Tensor], clipping: GlobalClipping) -> dict[str, Tensor]:
    elements = sum(gradient.numel() for gradient in gradients.values())
    return {
        name: gradient * clipping.factor(gradient, name, gradient.numel() / elements)
        for name, gradient in gradients.items()
    }
