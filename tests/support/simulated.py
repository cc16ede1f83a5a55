"""Data-parallel training of several ranks in one process: real compression, no network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradsieve import CompressionConfig, LayerCompressor, Policy, decode


@dataclass
class Rank:
    """What one rank keeps: a policy, and a compressor per large parameter."""

    policy: Policy
    layers: dict[str, LayerCompressor] = field(default_factory=dict)

    @classmethod
    def of(cls, config: CompressionConfig, model: nn.Module) -> Rank:
        rank = cls(config.policy())
        for name, parameter in model.named_parameters():
            if config.compresses(name, parameter.numel()):
                part = rank.policy.layer(name, parameter.numel())
                rank.layers[name] = LayerCompressor(config, parameter.numel(), name=name, policy=part)
        return rank

    def send(self, gradients: dict[str, Tensor], step: int) -> dict[str, Tensor]:
        """Compress, arrive, commit: what the others see of each gradient."""
        sent = dict(gradients)
        for name, layer in self.layers.items():
            total = torch.zeros(gradients[name].numel())
            payload = layer.compress(gradients[name], step=step)
            decode(payload, total.numel()).add_into(total)
            sent[name] = total.view(gradients[name].shape)
            layer.commit()
        self.policy.commit()
        return sent


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def training(
    task: Any, config: CompressionConfig, *, ranks: int, steps: int, seed: int = 0, optimizer: Any = None
) -> Iterator[tuple[int, list[Rank], nn.Module]]:
    """Train a demo task; yields after every step."""
    model = task.model(seed)
    made = task.optimizer(model) if optimizer is None else optimizer(model)
    members = [Rank.of(config, model) for _ in range(ranks)]
    for step in range(steps):
        sent = []
        for number, rank in enumerate(members):
            model.zero_grad()
            task.loss(model, step, number, seed).backward()
            sent.append(rank.send(gradients_of(model), step))
        for name, parameter in model.named_parameters():
            parameter.grad = torch.stack([gradients[name] for gradients in sent]).mean(dim=0)
        made.step()
        yield step, members, model
