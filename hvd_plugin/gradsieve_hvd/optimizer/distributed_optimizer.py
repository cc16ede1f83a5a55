"""gradsieve's own ``DistributedOptimizer``: Horovod's signature and habits, over any transport."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Parameter

from gradsieve_hvd.control.plan import has_coordinator
from gradsieve_hvd.engine.compression_argument import settings_from
from gradsieve_hvd.engine.parameters import on_one_gpu
from gradsieve_hvd.engine.settings import Settings
from gradsieve_hvd.transport.base import Transport
from gradsieve_hvd.transport.choose import choose_transport

from .arguments import (
    exchanged,
    is_average,
    named_from,
    require_no_closure,
    require_passes,
    require_plain,
    require_predivide_factor,
)
from .elastic_ranks import ElasticRanks, is_elastic
from .modes import optimizer_of
from .paths import ExchangeName
from .request import Request


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Parameter]] | None = None,
    compression: Settings | None = None,
    backward_passes_per_step: int = 1,
    op: Any = "average",
    gradient_predivide_factor: float = 1.0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: Any = None,
    *,
    exchange: ExchangeName | None = None,
    rank: int | None = None,
    momentum_correction: bool = True,
    transport: Transport | None = None,
    mode: str = "synchronous",
    **mode_settings: Any,
) -> Any:
    """Return ``optimizer`` as one that applies the mean of all ranks' gradients.

    The result shares state and parameter groups with ``optimizer``, and is an instance of its class.
    Gradients are selected as backward produces them, travel in buckets, and are summed while it goes on.

    Args:
        optimizer: any of ``torch.optim``'s or like them; it must not be used any more.
        named_parameters: as from ``model.named_parameters()``; names must be the same on all ranks. None
            numbers them.
        compression: one of `gradsieve_hvd.Compression`; None for ``Compression.laplace()`` where ``exchange``
            is given, else see there.
        backward_passes_per_step: backward passes whose gradients are added up before they are exchanged.
        op: ``hvd.Average`` or ``hvd.Sum``, or "average" or "sum".
        gradient_predivide_factor: Horovod's, with op=Average: gradients that travel whole are divided by it
            before they are added up, and by the rest of the number of ranks after. That matters in "fp16",
            where large sums overflow; fp32 sums have room.
        groups: Horovod's, a number or lists of parameters: tensors of one group leave in one bucket, those
            that are compressed and those that are not in one each.
        sparse_as_dense: make sparse gradients (of embeddings) dense ones, and exchange them as such.
        process_set: Horovod's, for ranks that talk through Horovod; None for all ranks.
        exchange: None: "allgather" where ``compression`` is given; without either, what is known to keep the
            loss of dense training with such an optimizer, see
            `gradsieve_hvd.optimizer.usual_settings.usual_settings` (in mode "local" and with a parameter
            server, what these always send). "allgather": every rank sends its entries to all; for few ranks.
            "ring": sums travel around a ring (method C). "scatter": every rank sums a part and selects
            again, so that as many entries are applied as one rank selects; for many ranks. "lowrank":
            matrices travel as two thin factors (PowerSGD), in 16 bits where ``value_dtype`` is a short
            type, and nothing is selected: of ``compression`` hold also min_elements, error_feedback,
            residual_dtype, momentum, clip_norm and what does not concern selection. "dense", "fp16",
            "bf16": nothing is compressed, all of it travels in that type (fp32 for "dense"). "auto":
            compressed tensors change between "allgather", "ring", "scatter" and travelling whole, as rank 0
            finds to be fastest; no less is sent than ``compression`` asks for.
        rank: columns of the factors of "lowrank", 1 to 8; None for 4.
        momentum_correction: apply the momentum and weight decay of a plain ``torch.optim.SGD`` on each rank
            before entries are selected, rather than after; see `gradsieve_hvd.optimizer.momentum`.
        transport: to the other ranks, for this optimizer alone; None for the best one among Horovod's ranks
            (see `choose_transport`), which all of them choose together: here, or under ``hvd.elastic`` in
            the first round, and again in the first one after `TrainingState.restore`.
        mode: when gradients become new weights (docs/modes.md). "synchronous": at every step, all ranks'.
            "balanced": the same, with batches by measured speed. "local": every rank steps by itself, and all
            exchange what has become of their weights. "auto": begins as "synchronous", and changes between
            these three (`gradsieve_hvd.optimizer.auto_mode.methods.AutoMethods`). "bsp",
            "asp", "ssp", "dssp", "dasp": steps push gradients to a parameter server in the ranks, which makes
            updates when the mode says; see `gradsieve_hvd.optimizer.served.methods.ServedMethods`.
        mode_settings: of the mode. "local": see `gradsieve_hvd.optimizer.local.local`; "auto":
            `gradsieve_hvd.optimizer.auto_mode.auto`. Modes with a parameter
            server: see `gradsieve_hvd.optimizer.served.mode.served`.

    Raises:
        ConfigurationError: a setting is not allowed, parameters are not named, the optimizer steps with a
            closure, or momentum would be applied twice.
    """
    require_plain(optimizer)
    require_no_closure(optimizer)
    require_passes(backward_passes_per_step)
    named = exchanged(named_from(optimizer, named_parameters))
    averages = is_average(op)
    require_predivide_factor(gradient_predivide_factor, averages=averages)
    request = Request(
        optimizer=optimizer,
        named=named,
        compression=None if compression is None else settings_from(compression),
        passes=backward_passes_per_step,
        averages=averages,
        predivide=gradient_predivide_factor,
        groups=groups,
        sparse_as_dense=sparse_as_dense,
        exchange=exchange,
        rank=rank,
        momentum_correction=momentum_correction,
        ranks=lambda timeout: transport or _to_horovods_ranks(process_set, timeout, named),
        steered=transport is None and process_set is None and has_coordinator(),
    )
    return optimizer_of(mode, request, mode_settings)


def _to_horovods_ranks(
    process_set: Any, timeout: float, named: list[tuple[str, Parameter]]
) -> Transport | ElasticRanks:
    """Return a transport among Horovod's ranks; all of them make their optimizers in the same order."""
    import horovod.torch as hvd

    ranks = hvd.global_process_set if process_set is None else process_set
    on_gpu = on_one_gpu(parameter for _, parameter in named)
    if is_elastic():
        return ElasticRanks(ranks, timeout, on_gpu=on_gpu)
    return choose_transport(ranks, timeout, on_gpu=on_gpu).transport
