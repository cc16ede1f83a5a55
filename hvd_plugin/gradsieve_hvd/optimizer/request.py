"""What a user asks of a distributed optimizer, whatever its mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Parameter

from gradsieve_hvd.engine.settings import Settings
from gradsieve_hvd.transport.base import Transport

from .elastic_ranks import ElasticRanks
from .paths import ExchangeName


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a user asks of any mode; see `DistributedOptimizer`.

    named: all of the optimizer's parameters. compression, exchange: None if the user left them to the mode.
    ranks:
    returns what connects with the other ranks; all ranks call it, once. steered: whether the job has a
    coordinator whose plan this optimizer may follow.
    """

    optimizer: torch.optim.Optimizer
    named: list[tuple[str, Parameter]]
    compression: Settings | None
    passes: int
    averages: bool
    predivide: float
    groups: Any
    sparse_as_dense: bool
    exchange: ExchangeName | None
    rank: int | None
    momentum_correction: bool
    ranks: Callable[[float], Transport | ElasticRanks]
    steered: bool
