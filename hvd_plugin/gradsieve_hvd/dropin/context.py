"""What ``compress`` hands to ``decompress`` through Horovod."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from gradsieve_hvd.engine.parameters import ParameterState
from gradsieve_hvd.transport.horovod_allgather import Allgather
from gradsieve_hvd.transport.running_clock import RUNNING


class Finishing(Protocol):
    """Who takes a gradient's exchange to its end."""

    def finish(self, reduced: Tensor, context: HorovodContext) -> Tensor:
        """Return what becomes ``p.grad``."""


@dataclass(eq=False)
class HorovodContext:
    """One call of ``compress``.

    gather: None on the dense path and for a repeated call.
    """

    adapter: Finishing
    state: ParameterState
    gradient: Tensor
    gather: Allgather | None = None
    repeated: bool = False
    started: float = field(default_factory=RUNNING.seconds)
