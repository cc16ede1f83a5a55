"""The optimizer of ``mode="auto"``."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch

from gradsieve.density import is_count
from gradsieve.errors import ConfigurationError
from gradsieve_hvd.engine.compression_argument import settings_from
from gradsieve_hvd.engine.settings import Settings
from gradsieve_hvd.optimizer.derived_class import with_methods
from gradsieve_hvd.optimizer.elastic_ranks import is_elastic
from gradsieve_hvd.optimizer.local.rules import LocalRules, usual_settings
from gradsieve_hvd.optimizer.served.mode import refused_settings, shards_of
from gradsieve_hvd.optimizer.synchronous import synchronous_as
from gradsieve_hvd.server.modes import USUAL_ANNOUNCEMENTS
from gradsieve_hvd.transport.mail import require_mailing

from .methods import METHODS, AutoMethods
from .mode_changes import ModeChanges
from .served_steps import SERVED_MODES, ServedSteps

if TYPE_CHECKING:
    from gradsieve_hvd.optimizer.request import Request


def auto(
    request: Request,
    *,
    local_steps: int = 15,
    residual_decay: float = 0.95,
    outer_learning_rate: float = 1.0,
    announce_every: int = USUAL_ANNOUNCEMENTS,
    parameter_server: bool = False,
    server_ranks: Collection[int] | None = None,
    equal_batches: bool = False,
) -> Any:
    """Return an optimizer that begins as of mode "synchronous" and can change its mode; see `AutoMethods`.

    Args:
        request: see `DistributedOptimizer`; of ``compression`` mode "local" takes the time-out and
            check_weights_every, and sends what it sends by default.
        local_steps: of mode "local", as the next two.
        residual_decay: see `gradsieve_hvd.optimizer.local.local`.
        outer_learning_rate: see there.
        announce_every: of mode "balanced".
        parameter_server: whether it may change to "asp", "ssp", "dssp" and "dasp" as well, in which ranks
            step at their own pace. The program must save its state within ``consistent()``.
        server_ranks: see `gradsieve_hvd.optimizer.served.mode.served`, as for the next one.
        equal_batches: in "dasp".

    Raises:
        ConfigurationError: see `synchronous_as`; or a setting is not allowed, or ranks are elastic.
    """
    rules = LocalRules(steps=local_steps, decay=residual_decay, learning_rate=outer_learning_rate)
    if not is_count(announce_every, 1):
        raise ConfigurationError(f"announce_every={announce_every!r}: expected an integer of at least 1")
    if is_elastic():
        raise ConfigurationError("mode='auto' does not go with hvd.elastic: ranks must stay. Name a mode")
    settings = settings_from(request.compression)
    for name, value, is_set in (
        ("server_ranks", server_ranks, server_ranks is not None),
        ("equal_batches", equal_batches, equal_batches),
    ):
        if is_set and not parameter_server:
            raise ConfigurationError(f"{name}={value!r} without parameter_server=True")
    made = synchronous_as(
        request,
        _derived,
        mode="auto",
        announce_every=announce_every,
        parameter_server=parameter_server,
        server_ranks=None if server_ranks is None else repr(server_ranks),
        equal_batches=equal_batches,
        **rules.describe(),
    )
    server = None
    if parameter_server:
        transport = made.synchronizer.connection.transport
        require_mailing(transport)
        shards = shards_of(server_ranks, transport.size)
        server = ServedSteps(request.optimizer, made.synchronizer, shards, equal_batches=equal_batches)
    made.mode_changes = ModeChanges(
        made.synchronizer,
        dataclasses.replace(settings, config=usual_settings().config),
        rules,
        announce_every,
        _refused(request, settings),
        server,
    )
    return made


def _derived(plain: type[torch.optim.Optimizer]) -> type:
    return with_methods(plain, AutoMethods, METHODS)


def _refused(request: Request, settings: Settings) -> Mapping[str, str]:
    """Return, by mode, what of a request does not go with it; only of modes with which something does not."""
    config = settings.config
    by_mode = {
        "balanced": {
            "op=Sum": not request.averages,
            "backward_passes_per_step": request.passes != 1,
            "clip_global_norm": settings.clip_global_norm is not None,
        },
        "local": {
            "op=Sum": not request.averages,
            "gradient_predivide_factor": request.predivide != 1.0,
            "grad_scaler": settings.grad_scaler is not None,
            "clip_global_norm": settings.clip_global_norm is not None,
            "nonfinite='propagate'": settings.nonfinite == "propagate" and settings.grad_scaler is None,
            "momentum": config.momentum is not None,
            "clip_norm": config.clip_norm is not None,
        },
    }
    # Groups share buckets, and sums of any path have the residuals that pushes have.
    sparse = request.exchange if request.exchange == "lowrank" else "allgather"
    served = refused_settings(dataclasses.replace(request, groups=None, exchange=sparse), settings)
    found = {mode: [name for name, is_set in each.items() if is_set] for mode, each in by_mode.items()}
    found |= dict.fromkeys(SERVED_MODES, served)
    return {mode: ", ".join(names) for mode, names in found.items() if names}
