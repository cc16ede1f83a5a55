"""The drop-in: compressors for the ``compression=`` argument of the stock
``horovod.torch.DistributedOptimizer``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from gradsieve.config import ALGORITHMS
from gradsieve.config.constructors import NotACompressor, constructor, settings_of
from gradsieve.config.registry import registered
from gradsieve_hvd.engine.settings import Settings

from . import horovod_internals
from .adapter import HorovodAdapter
from .context import HorovodContext

_FRAMES_TO_HOROVOD = 1


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class HorovodCompressor(Settings):
    """A compressor for ``hvd.DistributedOptimizer(compression=...)``; made by `Compression`.

    Frozen: what changes while training (residuals, thresholds, the state of a step) belongs to the optimizer
    that uses it, so one compressor may serve several optimizers.
    """

    def compress(self, tensor: Tensor) -> tuple[Tensor, HorovodContext]:
        """Called by Horovod with a gradient. Returns the tensor to all-reduce (one element for a compressed
        gradient) and a context.

        Raises:
            ConfigurationError: not called by a ``DistributedOptimizer``, or by one that cannot be served.
            RankMismatch: at the first call: the ranks' settings differ.
        """
        optimizer, likely = horovod_internals.caller(self, depth=_FRAMES_TO_HOROVOD)
        adapter = HorovodAdapter.of(optimizer, self)
        return adapter.start(horovod_internals.parameter_of(optimizer, tensor, likely), tensor)

    def decompress(self, tensor: Tensor, ctx: HorovodContext | None) -> Tensor:
        """Called by Horovod with the reduced tensor and the context. Returns the gradient that the optimizer
        shall apply.

        Raises:
            ExchangeError, PayloadError: see `HorovodAdapter.finish`.
        """
        if ctx is None:  # a sparse embedding gradient, which Horovod reduces by itself
            optimizer, parameter = horovod_internals.caller(self, depth=_FRAMES_TO_HOROVOD)
            if isinstance(parameter, Parameter):
                HorovodAdapter.of(optimizer, self).check_sparse_embedding(parameter, tensor)
            return tensor
        return ctx.adapter.finish(tensor, ctx)


class _Constructors(NotACompressor):
    """Finds the constructor of every algorithm that is registered."""

    def __getattr__(self, name: str) -> Callable[..., HorovodCompressor]:
        return _constructor(registered(name, self).name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *ALGORITHMS})


class Compression(metaclass=_Constructors):
    """Constructors of compressors for ``hvd.DistributedOptimizer(..., compression=...)``: ``topk``,
    ``group_topk``, ``laplace``, ``sampled``, ``layered``, ``importance``, and what else is registered.

    All take what the constructors of `gradsieve.Compression` take (density, min_elements, value_dtype,
    warmup, momentum, clip_norm, ...), where each is described, and:

    - ``grad_scaler``: the ``torch.amp.GradScaler`` in use, if any;
    - ``nonfinite``: default ``"raise"`` without and ``"propagate"`` with a scaler;
    - ``timeout_seconds``: default 300;
    - ``check_weights_every``: default 500;
    - ``clip_global_norm``: default None.
    """


@cache
def _constructor(name: str) -> Callable[..., HorovodCompressor]:
    """Return a constructor that takes what gradsieve's of the same name takes, and what Horovod needs."""
    make = ALGORITHMS[name].make
    own = [field.name for field in dataclasses.fields(HorovodCompressor) if field.name != "config"]

    def made(density: float = 0.01, **settings: Any) -> HorovodCompressor:
        return _horovod_compressor(make, density, settings)

    made.__name__, made.__doc__ = name, make.__doc__
    return constructor(made, [*settings_of(make), *own])


def _horovod_compressor(constructor: Any, density: float, settings: dict[str, Any]) -> HorovodCompressor:
    grad_scaler = settings.pop("grad_scaler", None)
    return HorovodCompressor(
        nonfinite=settings.pop("nonfinite", "raise" if grad_scaler is None else "propagate"),
        grad_scaler=grad_scaler,
        timeout_seconds=settings.pop("timeout_seconds", 300.0),
        check_weights_every=settings.pop("check_weights_every", 500),
        clip_global_norm=settings.pop("clip_global_norm", None),
        config=constructor(density=density, **settings),
    )


def adapter_of(optimizer: Any) -> HorovodAdapter | None:
    """Return what stands between a Horovod optimizer and gradsieve's engine; None if it does not compress
    with gradsieve.

    Raises:
        ConfigurationError: it is used in a way that gradsieve cannot serve.
    """
    compressor = getattr(optimizer, "_compression", None)
    return HorovodAdapter.of(optimizer, compressor) if isinstance(compressor, HorovodCompressor) else None
