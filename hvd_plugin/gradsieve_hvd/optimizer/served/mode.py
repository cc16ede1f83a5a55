"""The optimizers of the modes in which a parameter server makes the updates."""

from __future__ import annotations

import sys
from collections.abc import Collection
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gradsieve import Compression
from gradsieve.density import is_count
from gradsieve.errors import ConfigurationError
from gradsieve_hvd.engine.compression_argument import settings_from
from gradsieve_hvd.engine.settings import Settings
from gradsieve_hvd.optimizer.derived_class import sharing_all_with, with_methods
from gradsieve_hvd.optimizer.elastic_ranks import ElasticRanks
from gradsieve_hvd.server.modes import BOUNDED

from .gradients import ServedGradients
from .meeting import meeting
from .methods import METHODS, ServedMethods
from .serving import POLICIES, Serving
from .training import ServedTraining

if TYPE_CHECKING:
    from gradsieve_hvd.optimizer.request import Request


def served(
    mode: str,
    request: Request,
    *,
    server_ranks: Collection[int] | None = None,
    staleness_bound: int | None = None,
    equal_batches: bool = False,
) -> Any:
    """Return an optimizer whose steps push gradients to a parameter server; see `ServedMethods`.

    Args:
        mode: its name.
        request: what users asked for.
        server_ranks: those whose server threads keep and update weights; None for all. Everybody waits for
            every one of them, so leave out those that are slow. Rank 0 orders releases in any case.
        staleness_bound: by how many iterations a rank may lead the slowest, in "ssp" and "dssp"; None for 3
            and 15.
        equal_batches: whether a `DynamicSampler` deals batches of one size in "dasp", too, rather than larger
            ones to faster ranks.

    Raises:
        ConfigurationError: a setting is not allowed in these modes, or ``server_ranks`` are not ranks.
    """
    settings = _settings(mode, request)
    if why := why_no_bound(mode, staleness_bound):
        raise ConfigurationError(why)
    ranks = request.ranks(settings.timeout_seconds)
    if isinstance(ranks, ElasticRanks):
        raise ConfigurationError(f"mode={mode!r} does not go with hvd.elastic: ranks must stay")
    shards = shards_of(server_ranks, ranks.size)
    methods = with_methods(type(request.optimizer), ServedMethods, METHODS)
    made = sharing_all_with(request.optimizer, methods, METHODS)
    compared = {
        "mode": mode,
        "exchange": request.exchange or "allgather",
        "optimizer": type(request.optimizer).__name__,
        "server_ranks": ", ".join(map(str, shards)),
        "staleness_bound": str(staleness_bound),
        "equal_batches": str(equal_batches),
    }
    named = sorted(request.named, key=lambda each: each[0])
    whole = Compression.topk(min_elements=sys.maxsize)
    made.training = ServedTraining(
        request.optimizer,
        ServedGradients.new(named, whole if request.exchange == "dense" else settings.config),
        named,
        ranks,
        Serving(
            mode=mode,
            shards=shards,
            staleness_bound=staleness_bound,
            timeout=settings.timeout_seconds,
            equal_batches=equal_batches,
        ),
        meet=meeting(settings, named, ranks, compared),
    )
    return made


SERVED = MappingProxyType({mode: partial(served, mode) for mode in POLICIES})
"""What makes an optimizer of each mode."""


def why_no_bound(mode: str, staleness_bound: int | None) -> str:
    """Return why a mode does not take such a bound; empty if it does."""
    if staleness_bound is None or (mode in BOUNDED and is_count(staleness_bound, 1)):
        return ""
    modes = " and ".join(map(repr, BOUNDED))
    return f"staleness_bound={staleness_bound!r} must be an integer of at least 1, and for modes {modes}"


def shards_of(chosen: Collection[int] | None, size: int) -> list[int]:
    """Return the ranks that keep weights, increasing, of ``size`` ranks."""
    if chosen is None:
        return list(range(size))
    known = isinstance(chosen, Collection) and all(is_count(each, 0) and each < size for each in chosen)
    if not known or not chosen:
        raise ConfigurationError(
            f"server_ranks={chosen!r}: expected one or more of the ranks 0 to {size - 1}, such as [0]"
        )
    return sorted(set(chosen))


def _settings(mode: str, request: Request) -> Settings:
    """Return the settings, if nothing was asked for that these modes do not do."""
    settings = settings_from(request.compression)
    if wrong := refused_settings(request, settings):
        raise ConfigurationError(
            f"mode={mode!r} does not take {', '.join(wrong)}: leave it out, or train with mode='synchronous'"
        )
    return settings


def refused_settings(request: Request, settings: Settings) -> list[str]:
    """Return the names of what was asked for that these modes do not do."""
    config = settings.config
    refused = {
        "backward_passes_per_step": request.passes != 1,
        "op": not request.averages,
        "gradient_predivide_factor": request.predivide != 1.0,
        "groups": request.groups is not None,
        "sparse_as_dense": request.sparse_as_dense,
        "rank": request.rank is not None,
        "exchange (other than 'allgather', which is sparse pushes, and 'dense')": request.exchange
        not in (None, "allgather", "dense"),
        "compression.grad_scaler": settings.grad_scaler is not None,
        "compression.nonfinite (other than 'raise')": settings.nonfinite != "raise",
        "compression.clip_global_norm": settings.clip_global_norm is not None,
        "compression.clip_norm": config.clip_norm is not None,
        "compression.momentum": config.momentum is not None,
    }
    return [name for name, is_set in refused.items() if is_set]
