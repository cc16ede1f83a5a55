"""What a rank keeps of one parameter's gradients."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor
from torch.nn import Parameter

from gradsieve import CompressionConfig, Policy, Velocity

from .compressed_layer import CompressedLayer
from .factored_layer import FactoredLayer

_COMPRESSIBLE = (torch.float32, torch.float16, torch.bfloat16)


class Phase(Enum):
    """Where a gradient stands in the step."""

    IDLE = "idle"
    IN_FLIGHT = "in flight"
    EXCHANGED = "exchanged"


@dataclass(eq=False)
class ParameterState:
    """One parameter: its name, how its gradient travels and where it stands.

    layer: if entries of its gradient are selected. factored: if it travels as two factors. velocity: of
    momentum that is applied to it here, rather than in the layer.
    unused: in this step by this rank's model, which may go for all ranks.
    held: frozen, and no rank sent anything, so that it must not be updated. scale: the factor (of a loss
    scaler) in the gradient that is under way. sum: the gradient that the last exchange left behind.
    """

    name: str
    parameter: Parameter
    layer: CompressedLayer | None = None
    factored: FactoredLayer | None = None
    velocity: Velocity | None = None
    phase: Phase = Phase.IDLE
    unused: bool = False
    held: bool = False
    scale: float = 1.0
    sum: weakref.ref[Tensor] | None = None

    @classmethod
    def of(cls, name: str, parameter: Parameter, config: CompressionConfig, policy: Policy) -> ParameterState:
        """Return the state as of before the parameter's first step."""
        elements, device = parameter.numel(), parameter.device
        if compresses(config, name, parameter):
            part = policy.layer(name, elements)
            return cls(name, parameter, CompressedLayer(config, elements, device, name, part))
        return cls.dense(name, parameter, config)

    @classmethod
    def dense(cls, name: str, parameter: Parameter, config: CompressionConfig) -> ParameterState:
        """Return the state of a parameter whose gradient travels whole, as of before its first step."""
        if config.momentum is None:
            return cls(name, parameter)
        dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
        velocity = Velocity(config.momentum.momentum, parameter.numel(), parameter.device, dtype)
        return cls(name, parameter, velocity=velocity)

    @property
    def compressor(self) -> CompressedLayer | FactoredLayer | None:
        """What keeps its residual; None if its gradient travels dense."""
        return self.layer or self.factored

    @property
    def frozen(self) -> bool:
        """Whether the parameter was frozen after the optimizer was made."""
        return not self.parameter.requires_grad

    @property
    def has_gradient(self) -> bool:
        """Whether the parameter has a gradient that is not zero."""
        return self.parameter.grad is not None and bool(self.parameter.grad.any())

    @property
    def replaced(self) -> bool:
        """Whether the parameter's gradient is another tensor than the one that the exchange left."""
        return self.sum is None or self.parameter.grad is not self.sum()

    def commit(self) -> None:
        """The optimizer has stepped."""
        self.phase, self.held = Phase.IDLE, False
        for part in (self.compressor, self.velocity):
            if part is not None:
                part.commit()

    def rollback(self) -> None:
        """The optimizer is not going to step."""
        self.phase, self.held = Phase.IDLE, False
        for part in (self.compressor, self.velocity):
            if part is not None:
                part.rollback()


def compresses(config: CompressionConfig, name: str, parameter: Parameter) -> bool:
    """Whether the parameter's gradient is compressed; else it travels dense."""
    return parameter.dtype in _COMPRESSIBLE and config.compresses(name, parameter.numel())


def on_one_gpu(parameters: Iterable[Parameter]) -> bool:
    """Whether all parameters, one at least, lie on one CUDA device."""
    devices = {parameter.device for parameter in parameters}
    return len(devices) == 1 and devices.pop().type == "cuda"
