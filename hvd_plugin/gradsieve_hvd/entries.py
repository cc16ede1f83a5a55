"""The records of a step: one entry per parameter, one ticket per call of ``compress``."""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import Parameter

from gradsieve import LayerCompressor

from .exchange import Allgather

if TYPE_CHECKING:
    from .transaction import Transaction


class Phase(Enum):
    """Where a tensor stands in the step."""

    IDLE = "idle"
    IN_FLIGHT = "in flight"
    EXCHANGED = "exchanged"


@dataclass(eq=False)
class Entry:
    """One parameter: its name, its compressor (None: Horovod's dense path) and where it stands."""

    name: str
    parameter: Parameter
    layer: LayerCompressor | None
    phase: Phase = Phase.IDLE
    exchanged: weakref.ref[Tensor] | None = None  # the gradient that holds the mean


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
    started: float = field(default_factory=time.monotonic)
