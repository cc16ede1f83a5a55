"""The records of a step: one entry per parameter, one ticket per call of ``compress``."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Parameter

from gradsieve import CompressionConfig, LayerCompressor, Policy, Velocity

from .running_clock import RUNNING
from .transport.horovod_allgather import Allgather

if TYPE_CHECKING:
    from .transaction import Transaction


_COMPRESSIBLE = (torch.float32, torch.float16, torch.bfloat16)


class Phase(Enum):
    """Where a tensor stands in the step."""

    IDLE = "idle"
    IN_FLIGHT = "in flight"
    EXCHANGED = "exchanged"


@dataclass(eq=False)
class Entry:
    """One parameter: its name, how its gradient travels and where it stands.

    ``layer`` is None on Horovod's dense path; ``velocity`` is what momentum correction keeps for it there.
    """

    name: str
    parameter: Parameter
    layer: LayerCompressor | None = None
    velocity: Velocity | None = None
    phase: Phase = Phase.IDLE
    exchanged: weakref.ref[Tensor] | None = None  # the gradient that holds the mean
    held: bool = False  # frozen, and no rank sent anything: the parameter must not be updated

    @classmethod
    def of(cls, name: str, parameter: Parameter, config: CompressionConfig, policy: Policy) -> Entry:
        """The entry as of before the parameter's first step."""
        elements, device = parameter.numel(), parameter.device
        if compresses(config, name, parameter):
            part = policy.layer(name, elements)
            return cls(name, parameter, LayerCompressor(config, elements, device, name, part))
        if config.momentum is None:
            return cls(name, parameter)
        dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
        return cls(name, parameter, velocity=Velocity(config.momentum.momentum, elements, device, dtype))

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
        return self.exchanged is None or self.parameter.grad is not self.exchanged()

    def commit(self) -> None:
        """The optimizer has stepped."""
        self.phase, self.held = Phase.IDLE, False
        for state in (self.layer, self.velocity):
            if state is not None:
                state.commit()

    def rollback(self) -> None:
        """The step was never applied."""
        self.phase, self.held = Phase.IDLE, False
        for state in (self.layer, self.velocity):
            if state is not None:
                state.rollback()


def compresses(config: CompressionConfig, name: str, parameter: Parameter) -> bool:
    """Whether the parameter's gradient is compressed; else it takes Horovod's dense path."""
    return parameter.dtype in _COMPRESSIBLE and config.compresses(name, parameter.numel())


@dataclass(eq=False)
class Ticket:
    """What ``compress`` hands to ``decompress`` through Horovod. ``gather`` is None on the dense path and for
    a repeated call.
    """

    transaction: Transaction
    entry: Entry
    gradient: Tensor
    scale: float = 1.0
    gather: Allgather | None = None
    repeated: bool = False
    version: int = 0  # of the gradient when its exchange began: torch's count of changes in place
    started: float = field(default_factory=RUNNING.seconds)
