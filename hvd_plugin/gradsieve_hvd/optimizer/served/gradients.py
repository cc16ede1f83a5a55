"""A rank's gradients on their way to a parameter server: what is sent of each, and what waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from gradsieve import CompressionConfig, Policy, Refusal
from gradsieve.errors import ConfigurationError
from gradsieve.kernels.magnitude import all_finite
from gradsieve_hvd.engine.compressed_layer import CompressedLayer
from gradsieve_hvd.engine.parameters import compresses


class ServedGradients:
    """Encodes the gradients of one push after another; each ends with ``commit`` or ``rollback``.

    Args:
        named: the parameters; a tensor's number is its place here.
        layers: of those whose gradients are compressed, by name; others travel whole, as fp32.
        policy: of the layers.
    """

    def __init__(
        self, named: Sequence[tuple[str, Parameter]], layers: Mapping[str, CompressedLayer], policy: Policy
    ) -> None:
        self._named, self._policy = named, policy
        self._layers = {number: layers[name] for number, (name, _) in enumerate(named) if name in layers}

    @classmethod
    def new(cls, named: Sequence[tuple[str, Parameter]], config: CompressionConfig) -> ServedGradients:
        """Return those of a training that begins. config: what is compressed, and how."""
        policy = config.policy()
        layers = {
            name: CompressedLayer(config, p.numel(), p.device, name, policy.layer(name, p.numel()))
            for name, p in named
            if compresses(config, name, p)
        }
        return cls(named, layers, policy)

    @property
    def whole(self) -> frozenset[int]:
        """The numbers of the parameters whose gradients travel as they are."""
        return frozenset(range(len(self._named))) - self._layers.keys()

    @property
    def density(self) -> float:
        """Entries that the last push had, over all, in (0, 1]."""
        elements = sum(parameter.numel() for _, parameter in self._named)
        whole = elements - sum(self._named[number][1].numel() for number in self._layers)
        return (whole + sum(layer.kept for layer in self._layers.values())) / max(elements, 1)

    def payloads(self, step: int, scale: float = 1.0) -> dict[int, Tensor] | list[str]:
        """Return what is sent of each parameter's gradient, by number, or the names of those that are not
        finite, and then nothing has changed. Of `whole` ones that is their memory.

        Parameters without a gradient, and frozen ones, are left out; what waits of them waits on.

        step: the clock of a density warm-up: pushes before. scale: what gradients are multiplied by.

        Raises:
            ConfigurationError: a gradient is sparse.
        """
        made: dict[int, Tensor] = {}
        refused = []
        for number, (name, parameter) in enumerate(self._named):
            gradient = parameter.grad
            if gradient is None or not parameter.requires_grad:
                continue
            if gradient.is_sparse:
                raise ConfigurationError(
                    f"the gradient of '{name}' is sparse, and a parameter server takes dense ones: make the "
                    "embedding with sparse=False"
                )
            payload = self._payload(number, gradient if scale == 1 else gradient * scale, step)
            if payload is None:
                refused.append(name)
            else:
                made[number] = payload
        if refused:
            self.rollback()
        return refused or made

    def _payload(self, number: int, gradient: Tensor, step: int) -> Tensor | None:
        layer = self._layers.get(number)
        if layer is None:
            flat = gradient.detach().reshape(-1).to("cpu", torch.float32)
            return flat.contiguous().view(torch.uint8) if all_finite(flat) else None
        selected = layer.select(gradient, step=step)
        return None if isinstance(selected, Refusal) else layer.encode(selected)

    def state_dict(self) -> dict[str, Any]:
        """Return the residuals, thresholds and policies of the compressed parameters, by name (copies)."""
        return {self._named[number][0]: layer.state_dict() for number, layer in self._layers.items()}

    def commit(self) -> None:
        """What was encoded has arrived."""
        for layer in self._layers.values():
            layer.commit()
        self._policy.commit()

    def rollback(self) -> None:
        """What was encoded is not going to be applied: residuals are as before."""
        for layer in self._layers.values():
            layer.rollback()
        self._policy.rollback()
