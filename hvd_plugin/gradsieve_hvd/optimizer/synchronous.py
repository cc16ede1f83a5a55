"""``mode="synchronous"``: at every step all ranks apply the mean of all ranks' gradients (BSP)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from gradsieve import Steering
from gradsieve_hvd.engine.compression_argument import settings_from
from gradsieve_hvd.engine.supported import require_no_double_momentum

from .arguments import group_numbers
from .connection import Connection
from .derived_class import sharing_all_with
from .elastic_ranks import ElasticRanks
from .methods import METHODS, derived
from .momentum import TakenOverMomentum, is_to_be_taken_over
from .paths import path_named
from .request import Request
from .synchronizer import Synchronizer
from .usual_settings import ChosenFor, usual_settings


def synchronous(request: Request) -> Any:
    """Return an optimizer that sums gradients as backward produces them; see `DistributedOptimizer`.

    Raises:
        ConfigurationError: a setting is not allowed, or momentum would be applied twice.
    """
    return synchronous_as(request, mode="synchronous")


def synchronous_as(
    request: Request, made_of: Callable[[type[torch.optim.Optimizer]], type] = derived, **mode: Any
) -> Any:
    """Return such an optimizer for a mode that builds on it.

    made_of: returns the class of the optimizer, derived from the user's. mode: its name and its settings,
    which ranks compare, JSON-able.

    Raises:
        ConfigurationError: a setting is not allowed, or momentum would be applied twice.
    """
    exchange, asked, usual = request.exchange or "allgather", settings_from(request.compression), None
    if request.exchange is None and request.compression is None:
        usual = usual_settings(request.optimizer, momentum_correction=request.momentum_correction)
        exchange, asked = usual.exchange, usual.settings
    path = path_named(exchange, request.rank)
    if usual is not None:
        path = dataclasses.replace(path, why=usual.why)
    settings = path.applied_to(asked)
    group_of = group_numbers(request.groups, request.named)
    require_no_double_momentum(request.optimizer, settings.config)
    used = request.ranks(settings.timeout_seconds)
    first = used.unconnected() if isinstance(used, ElasticRanks) else used
    if usual is not None and first.rank == 0:
        usual.log()
    made = sharing_all_with(request.optimizer, made_of(type(request.optimizer)), METHODS)
    wants = request.momentum_correction and path.sparse is not None
    takes_over = wants and is_to_be_taken_over(request.optimizer, settings.config, first.rank)
    made.should_synchronize = True
    made.synchronizer = Synchronizer(
        request.named,
        settings,
        Connection(used, settings.timeout_seconds),
        path,
        averages=request.averages,
        passes=request.passes,
        sparse_as_dense=request.sparse_as_dense,
        compared={
            "op": "Average" if request.averages else "Sum",
            "exchange": exchange,
            "rank": path.rank,
            "momentum_correction": takes_over,
            "gradient_predivide_factor": request.predivide,
            "groups": group_of,
            **mode,
        },
        group_of=group_of,
        predivide=request.predivide,
        momentum=TakenOverMomentum(made) if takes_over else None,
        steering=Steering() if request.steered else None,
    )
    made.synchronizer.end_hooks_with(made)
    if usual is not None and usual.exchange == "auto" and first.rank == 0:
        left = "" if takes_over else "it had none at first"
        made.synchronizer.chosen_for = ChosenFor(type(request.optimizer), left)
    return made
