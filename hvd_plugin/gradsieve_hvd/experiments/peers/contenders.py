"""Who competes on a link: Horovod and DistributedDataParallel with what they bring, and gradsieve's paths.

All of them train the same model with the same kind of step: backward, then ``optimizer.step()``. Those that
are called after local steps exchange once in so many of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from .dgc import DgcState, dgc_hook

ALONE = "alone"  # computing without any exchange, which every table is measured against
CHOOSING = "auto"  # gradsieve's optimizer that looks for the best path
_ONE_BUCKET_MB = 1000.0  # PowerSGD's hook was seen to hang or crash with several buckets on gloo
_FIRST_POWER_SGD_STEP = 2  # the least that it takes; its own default, 1 000, is longer than these trainings


class Contender(NamedTuple):
    """forward: the model as the loss is computed with. optimizer: its ``step()`` ends a step. finish: called
    after the last step, by all ranks.
    """

    forward: nn.Module
    optimizer: Optimizer
    finish: Callable[[], None] = lambda: None


Make = Callable[[nn.Module, Optimizer, float], Contender]
"""Takes a model, its optimizer that is not distributed yet, and kept / all; called by all ranks together."""


def _alone(model: nn.Module, plain: Optimizer, density: float) -> Contender:  # noqa: ARG001 - `Make`
    return Contender(model, plain)


def _horovod(compression: str, model: nn.Module, plain: Optimizer, density: float) -> Contender:  # noqa: ARG001 - `Make`
    import horovod.torch as hvd

    distributed = hvd.DistributedOptimizer(
        plain, model.named_parameters(), compression=getattr(hvd.Compression, compression)
    )
    return Contender(model, distributed)


def _dropin(model: nn.Module, plain: Optimizer, density: float) -> Contender:
    import horovod.torch as hvd

    import gradsieve_hvd

    distributed = hvd.DistributedOptimizer(
        plain, model.named_parameters(), compression=gradsieve_hvd.Compression.laplace(density=density)
    )
    return Contender(model, distributed)


def _own(
    exchange: Any, factor: float, values: Any, model: nn.Module, plain: Optimizer, density: float
) -> Contender:
    """factor: of the density. values: their type in messages."""
    import gradsieve_hvd

    compression = gradsieve_hvd.Compression.laplace(density=factor * density, value_dtype=values)
    distributed = gradsieve_hvd.DistributedOptimizer(
        plain, model.named_parameters(), compression, exchange=exchange
    )
    return Contender(model, distributed)


def _local(steps: int, model: nn.Module, plain: Optimizer, density: float) -> Contender:  # noqa: ARG001 - `Make`
    """What is sent of the differences is the mode's own."""
    import gradsieve_hvd

    distributed = gradsieve_hvd.DistributedOptimizer(
        plain, model.named_parameters(), mode="local", local_steps=steps
    )
    return Contender(model, distributed, distributed.finish)


def _ddp(model: nn.Module, plain: Optimizer, density: float) -> Contender:  # noqa: ARG001 - `Make`
    return Contender(DistributedDataParallel(model, init_sync=False), plain)


def _ddp_fp16(model: nn.Module, plain: Optimizer, density: float) -> Contender:  # noqa: ARG001 - `Make`
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    wrapped = DistributedDataParallel(model, init_sync=False)
    wrapped.register_comm_hook(None, fp16_compress_hook)
    return Contender(wrapped, plain)


def _power_sgd(rank: int, model: nn.Module, plain: Optimizer, density: float) -> Contender:  # noqa: ARG001 - `Make`
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    wrapped = DistributedDataParallel(model, init_sync=False, bucket_cap_mb=_ONE_BUCKET_MB)
    state = PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=_FIRST_POWER_SGD_STEP)
    wrapped.register_comm_hook(state, powerSGD_hook)
    return Contender(wrapped, plain)


def _dgc(model: nn.Module, plain: Optimizer, density: float) -> Contender:
    wrapped = DistributedDataParallel(model, init_sync=False)
    wrapped.register_comm_hook(DgcState(density, momentum=plain.param_groups[0]["momentum"]), dgc_hook)
    for group in plain.param_groups:
        group["momentum"], group["nesterov"] = 0.0, False  # the hook applies it
    return Contender(wrapped, plain)


def _ddp_hook(model: nn.Module, plain: Optimizer, density: float) -> Contender:
    import gradsieve_hvd

    wrapped = DistributedDataParallel(model, init_sync=False)
    state = gradsieve_hvd.DdpState(wrapped, gradsieve_hvd.Compression.laplace(density=density))
    wrapped.register_comm_hook(state, gradsieve_hvd.ddp_hook)
    return Contender(wrapped, plain)


_LOCAL_STEPS = {"local-5": 5, "local-15": 15, "local-50": 50}  # H, by name

CONTENDERS: dict[str, Make] = {
    "horovod": partial(_horovod, "none"),
    "horovod-fp16": partial(_horovod, "fp16"),
    "ddp": _ddp,
    "ddp-fp16": _ddp_fp16,
    "powersgd-1": partial(_power_sgd, 1),
    "powersgd-2": partial(_power_sgd, 2),
    "powersgd-4": partial(_power_sgd, 4),
    "dgc": _dgc,
    "dropin": _dropin,
    "ddp-hook": _ddp_hook,
    "allgather": partial(_own, "allgather", 1.0, "float32"),
    "ring": partial(_own, "ring", 1.0, "float32"),
    "scatter": partial(_own, "scatter", 1.0, "float32"),
    "dense": partial(_own, "dense", 1.0, "float32"),
    "fp16": partial(_own, "fp16", 1.0, "float32"),
    CHOOSING: partial(_own, "auto", 1.0, "float32"),
    "lowrank": partial(_own, "lowrank", 1.0, "float32"),
    "lowrank-bf16": partial(_own, "lowrank", 1.0, "bfloat16"),
    "int4": partial(_own, "allgather", 3.0, "int4"),
    **{name: partial(_local, steps) for name, steps in _LOCAL_STEPS.items()},
}
"""By the name that rows have; "int4" keeps three times the density, in levels of 4 bits."""


def base_name(name: str) -> str:
    """Return what a contender is called without the number that tells it from another of its kind."""
    return name.partition("#")[0]


def steps_together(name: str) -> int:
    """Return how many steps lie from one exchange to the next: only then have ranks the same weights, and
    only so many of them tell what a step takes.
    """
    return _LOCAL_STEPS.get(base_name(name), 1)


def make(name: str, model: nn.Module, plain: Optimizer, density: float) -> Contender:
    """Return a contender by the name of its row; `ALONE` is one, too."""
    return (CONTENDERS | {ALONE: _alone})[base_name(name)](model, plain, density)
