"""The drop-in: compressors for the ``compression=`` argument of the stock
``horovod.torch.DistributedOptimizer``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, Protocol

from torch import Tensor
from torch.nn import Parameter

import gradsieve
from gradsieve.config.base import is_positive
from gradsieve.config.constructors import NotACompressor, constructor, settings_of
from gradsieve.density import is_count
from gradsieve.errors import ConfigurationError

from . import seam
from .entries import Ticket
from .step_counter import StepStatistics
from .transaction import Transaction

P = ParamSpec("P")
NonFinite = Literal["raise", "propagate"]
_FRAMES_TO_HOROVOD = 1


class GradScaler(Protocol):
    """What gradsieve uses of ``torch.amp.GradScaler``."""

    def get_scale(self) -> float:
        """The factor that the loss, and so the gradients, were multiplied with."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class HorovodCompressor:
    """A compressor for ``hvd.DistributedOptimizer(compression=...)``; made by `Compression`.

    Frozen: it holds settings only. What changes while training (residuals, thresholds, the state of a step)
    belongs to the optimizer that uses it, so one compressor may serve several optimizers.

    Attributes:
        config: which gradients, how much of them, in which encoding.
        nonfinite: ``"raise"``: `NonFiniteGradient` on every rank; ``"propagate"``: every rank gets NaN, for a
            loss scaler that skips the step.
        grad_scaler: the scaler whose factor is in the gradients; residuals are kept without it, so a changing
            factor does not matter.
        timeout_seconds: how long an exchange may take before it is an error. Include the longest time that
            one rank keeps the others waiting (an evaluation on rank 0).
        check_weights_every: exchanges of gradients from one comparison of the ranks' weights to the next; see
            `gradsieve_hvd.weights_check`. None or 0: never.
        clip_global_norm: the largest norm of the gradient of all tensors together, averaged (or summed) over
            the ranks, in unscaled units; see `gradsieve.global_clipping` **(r)**. None does not clip.
    """

    config: gradsieve.CompressionConfig
    nonfinite: NonFinite
    grad_scaler: GradScaler | None
    timeout_seconds: float
    check_weights_every: int | None = 500
    clip_global_norm: float | None = None

    def __post_init__(self) -> None:
        if self.nonfinite not in ("raise", "propagate"):
            raise ConfigurationError(f"nonfinite={self.nonfinite!r}: expected 'raise' or 'propagate'")
        if self.grad_scaler is not None and self.nonfinite == "raise":
            raise ConfigurationError(
                "nonfinite='raise' contradicts grad_scaler=: a loss scaler overflows on purpose. Leave "
                "nonfinite out."
            )
        if not self.timeout_seconds > 0:
            raise ConfigurationError(
                f"timeout_seconds={self.timeout_seconds!r}: expected a positive number of seconds"
            )
        if self.clip_global_norm is not None and not is_positive(self.clip_global_norm):
            raise ConfigurationError(
                f"clip_global_norm={self.clip_global_norm!r}: expected a positive number, or None"
            )
        if self.check_weights_every is not None and not is_count(self.check_weights_every, 0):
            raise ConfigurationError(
                f"check_weights_every={self.check_weights_every!r}: expected a number of steps, or None"
            )

    def compress(self, tensor: Tensor) -> tuple[Tensor, Ticket]:
        """Called by Horovod with a gradient. Returns the tensor to all-reduce (one element for a compressed
        gradient) and a ticket.

        Raises:
            ConfigurationError: not called by a ``DistributedOptimizer``, or by one that cannot be served.
            RankMismatch: at the first call: the ranks' settings differ.
        """
        optimizer, likely = seam.caller(self, depth=_FRAMES_TO_HOROVOD)
        transaction = Transaction.of(optimizer, self)
        return transaction.start(seam.parameter_of(optimizer, tensor, likely), tensor)

    def decompress(self, tensor: Tensor, ctx: Ticket | None) -> Tensor:
        """Called by Horovod with the reduced tensor and the ticket. Returns the gradient that the optimizer
        shall apply.

        Raises:
            ExchangeError, PayloadError: see `Transaction.finish`.
        """
        if ctx is None:  # a sparse embedding gradient, which Horovod reduces by itself
            optimizer, parameter = seam.caller(self, depth=_FRAMES_TO_HOROVOD)
            if isinstance(parameter, Parameter):
                Transaction.of(optimizer, self).check_sparse_embedding(parameter, tensor)
            return tensor
        return ctx.transaction.finish(tensor, ctx)

    def loss_scale(self) -> float:
        """The factor in the gradients of the current backward pass."""
        return 1.0 if self.grad_scaler is None else float(self.grad_scaler.get_scale())

    def describe(self) -> dict[str, Any]:
        """JSON-able settings that must be equal on all ranks."""
        return {
            **self.config.describe(),
            "nonfinite": self.nonfinite,
            "grad_scaler": self.grad_scaler is not None,
            "check_weights_every": self.check_weights_every or None,
            "clip_global_norm": self.clip_global_norm,
            "gradsieve": gradsieve.__version__,
        }


def _constructor(function: Callable[P, HorovodCompressor]) -> Callable[P, HorovodCompressor]:
    """Decorate a constructor that takes what gradsieve's of the same name takes, and what Horovod needs."""
    own = [field.name for field in dataclasses.fields(HorovodCompressor) if field.name != "config"]
    return constructor(function, [*settings_of(getattr(gradsieve.Compression, function.__name__)), *own])


class Compression(metaclass=NotACompressor):
    """Constructors of compressors for ``hvd.DistributedOptimizer(..., compression=...)``.

    All take what the constructors of `gradsieve.Compression` take (density, min_elements, value_dtype,
    warmup, momentum, clip_norm, ...), and:

    - ``grad_scaler``: the ``torch.amp.GradScaler`` in use, if any;
    - ``nonfinite``: default ``"raise"`` without and ``"propagate"`` with a scaler;
    - ``timeout_seconds``: default 300;
    - ``check_weights_every``: default 500;
    - ``clip_global_norm``: default None.
    """

    @staticmethod
    @_constructor
    def topk(density: float = 0.01, **settings: Any) -> HorovodCompressor:
        """The largest magnitudes of each tensor, exactly ``ceil(density * elements)`` of them. See
        `gradsieve.Compression.topk`.
        """
        return _horovod_compressor(gradsieve.Compression.topk, density, settings)

    @staticmethod
    @_constructor
    def group_topk(density: float = 0.01, **settings: Any) -> HorovodCompressor:
        """The largest magnitudes of each group of elements; converges clearly worse than the others. See
        `gradsieve.Compression.group_topk`.
        """
        return _horovod_compressor(gradsieve.Compression.group_topk, density, settings)

    @staticmethod
    @_constructor
    def laplace(density: float = 0.01, **settings: Any) -> HorovodCompressor:
        """All magnitudes above an estimated threshold. See `gradsieve.Compression.laplace`."""
        return _horovod_compressor(gradsieve.Compression.laplace, density, settings)

    @staticmethod
    @_constructor
    def sampled(density: float = 0.01, **settings: Any) -> HorovodCompressor:
        """All magnitudes above a sample's threshold. See `gradsieve.Compression.sampled`."""
        return _horovod_compressor(gradsieve.Compression.sampled, density, settings)

    @staticmethod
    @_constructor
    def layered(density: float = 0.01, **settings: Any) -> HorovodCompressor:
        """A threshold and a density per layer, which follow its gradients. See
        `gradsieve.Compression.layered`.
        """
        return _horovod_compressor(gradsieve.Compression.layered, density, settings)

    @staticmethod
    @_constructor
    def importance(density: float = 0.01, **settings: Any) -> HorovodCompressor:
        """A density that follows the batches' losses and the network's delay. Compute the loss with
        `gradsieve.cross_entropy`. See `gradsieve.Compression.importance`.
        """
        return _horovod_compressor(gradsieve.Compression.importance, density, settings)


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


def statistics(optimizer: Any) -> StepStatistics:
    """Bytes and densities of the optimizer's last completed step on this rank, and what waits now in the
    residuals of frozen parameters.

    Raises:
        ConfigurationError: the optimizer has no gradsieve compressor.
    """
    transaction = transaction_of(optimizer)
    return dataclasses.replace(transaction.counter.last, waiting=transaction.waiting())


def transaction_of(optimizer: Any) -> Transaction:
    """What gradsieve keeps for a distributed optimizer.

    Raises:
        ConfigurationError: the optimizer has no gradsieve compressor.
    """
    compressor = compressor_of(optimizer)
    if compressor is None:
        raise ConfigurationError("this optimizer is no hvd.DistributedOptimizer with a gradsieve compressor")
    return Transaction.of(optimizer, compressor)


def compressor_of(optimizer: Any) -> HorovodCompressor | None:
    """The gradsieve compressor of one of Horovod's optimizers; None if it has none."""
    compressor = getattr(optimizer, "_compression", None)
    return compressor if isinstance(compressor, HorovodCompressor) else None
