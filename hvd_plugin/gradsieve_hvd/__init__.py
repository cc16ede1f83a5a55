"""gradsieve for Horovod: compressed gradients through the stock ``horovod.torch``, a launcher and an emulated
link.

::

    import gradsieve_hvd
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(),
        compression=gradsieve_hvd.Compression.laplace(density=0.01)
    )

Importing it needs neither Horovod nor MPI; training does.

The map, from the top; each stands on what comes below it (docs/architecture.md)::

    cli
    experiments   demo, bench, report, reproduce, simulate: real training, measured
    ddp           a hook for DistributedDataParallel, on the optimizer's buckets
    dropin        the stock Horovod's compression=        optimizer     an optimizer of our own, with buckets
    engine        a step over an optimizer's gradients, as a transaction
    exchange      allgather, ring, scatter of sparse gradients, and whole ones, over any transport
    transport     bytes between ranks: mpi4py, torch.distributed, Horovod, threads

Beside them: training_state (commits), control (coordinator and agents), launcher, horovod_build.

A gradient's journey::

    ready ─► select (residual, policy, selector) ─► bucket or tensor ─► exchange     [backward goes on]
    synchronize: wait ─► p.grad = mean ─► step ─► commit; or rollback, bit for bit
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradsieve.errors import (
        BuildError,
        ConfigurationError,
        ExchangeError,
        GradsieveError,
        HighDensityWarning,
        LaunchError,
        NonFiniteGradient,
        PayloadError,
        RankMismatch,
        StateError,
    )
    from gradsieve.schedule import DensityWarmup
    from gradsieve_hvd.control.reported import report
    from gradsieve_hvd.ddp import DdpState, ddp_hook
    from gradsieve_hvd.dropin.compressor import Compression, HorovodCompressor
    from gradsieve_hvd.dropin.job_compression import job_compression
    from gradsieve_hvd.engine.statistics import StepStatistics
    from gradsieve_hvd.optimizer.distributed_optimizer import DistributedOptimizer
    from gradsieve_hvd.optimizer.sampling import DynamicSampler
    from gradsieve_hvd.optimizers import load_state_dict, state_dict, statistics
    from gradsieve_hvd.training_state import TrainingState

# Imported when first used: the command line should not wait seconds for torch.
_HOMES = {
    "gradsieve.schedule": ("DensityWarmup",),
    "gradsieve.errors": (
        "BuildError",
        "ConfigurationError",
        "ExchangeError",
        "GradsieveError",
        "HighDensityWarning",
        "LaunchError",
        "NonFiniteGradient",
        "PayloadError",
        "RankMismatch",
        "StateError",
    ),
    "gradsieve_hvd.control.reported": ("report",),
    "gradsieve_hvd.ddp": ("DdpState", "ddp_hook"),
    "gradsieve_hvd.dropin.compressor": ("Compression", "HorovodCompressor"),
    "gradsieve_hvd.dropin.job_compression": ("job_compression",),
    "gradsieve_hvd.engine.statistics": ("StepStatistics",),
    "gradsieve_hvd.optimizer.distributed_optimizer": ("DistributedOptimizer",),
    "gradsieve_hvd.optimizer.sampling": ("DynamicSampler",),
    "gradsieve_hvd.optimizers": (
        "load_state_dict",
        "state_dict",
        "statistics",
    ),
    "gradsieve_hvd.training_state": ("TrainingState",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "BuildError",
    "Compression",
    "ConfigurationError",
    "DdpState",
    "DensityWarmup",
    "DistributedOptimizer",
    "DynamicSampler",
    "ExchangeError",
    "GradsieveError",
    "HighDensityWarning",
    "HorovodCompressor",
    "LaunchError",
    "NonFiniteGradient",
    "PayloadError",
    "RankMismatch",
    "StateError",
    "StepStatistics",
    "TrainingState",
    "ddp_hook",
    "job_compression",
    "load_state_dict",
    "report",
    "state_dict",
    "statistics",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
