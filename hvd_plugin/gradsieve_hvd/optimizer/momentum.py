"""SGD's momentum, applied on each rank before entries are selected rather than after the exchange.

What waits in a residual reaches an optimizer's momentum late and in lumps. Velocities that are accumulated
and sent instead arrive as they would have (Deep Gradient Compression, section 3.2; here nothing is masked, so
that sending everything is SGD with momentum).
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from gradsieve import CompressionConfig, Velocity
from gradsieve.errors import ConfigurationError

_log = logging.getLogger("gradsieve.optimizer")
_TAKEN = ("momentum", "weight_decay")


class TakenOverMomentum:
    """Does what an ``torch.optim.SGD`` would do with momentum and weight decay, before the exchange.

    1. u = momentum * u + gradient + weight_decay * parameter, of each parameter, with the values that are in
       the optimizer's ``param_groups`` at that step; u is what is compressed (of a gradient that travels
       whole: what is made of the sum).
    2. While the optimizer makes its update, both settings are zero.
    3. A ``momentum_buffer`` in the optimizer's state (loaded, or left by
       ``hvd.broadcast_optimizer_state()``) becomes the velocity and leaves the state.

    Args:
        optimizer: one that `is_to_be_taken_over`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer, self._ranks = weakref.ref(optimizer), 1
        self._group_of: dict[Parameter, dict[str, Any]] = {}

    def begin_round(self, ranks: int) -> None:
        """Look which group each parameter is in now: loading a state replaces them.

        ranks: whose gradients are summed rather than averaged; 1 if they are averaged.
        """
        self._ranks = ranks
        self._group_of = {each: group for group in self._groups() for each in group["params"]}

    def velocity(self, parameter: Parameter, *, compressed: bool) -> Velocity:
        """Return a parameter's velocity, zero; ``compressed``: each rank adds its part of the sum."""

        def settings() -> tuple[float, float]:
            group, ranks = self._group_of.get(parameter), self._ranks if compressed else 1
            if group is None:  # taken out of the optimizer's groups: nobody will apply it
                return 0.0, 0.0
            return float(group["momentum"]), float(group["weight_decay"]) / ranks

        return _SgdVelocity(parameter, settings)

    def adopt(self, parameter: Parameter, velocity: Velocity, *, compressed: bool) -> None:
        """Go on from the momentum that the optimizer has for a parameter, if there is one."""
        optimizer = self._optimizer()
        # The entry stays: where there is none, hvd.broadcast_optimizer_state() makes a step to get one.
        buffer = None if optimizer is None else optimizer.state[parameter].pop("momentum_buffer", None)
        if buffer is not None:
            share = buffer.detach().flatten().to(velocity.dtype) / (self._ranks if compressed else 1)
            velocity.load_state_dict({"velocity": share})

    def give_back(self, parameter: Parameter, velocity: Velocity) -> None:
        """Let the optimizer go on with the momentum that was kept here, where gradients are averaged."""
        optimizer = self._optimizer()
        if optimizer is not None:
            kept = velocity.state_dict()["velocity"].to(parameter.dtype).view(parameter.shape)
            optimizer.state[parameter]["momentum_buffer"] = kept

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Have the optimizer apply what is in ``p.grad``, without momentum and weight decay of its own.

        Raises:
            ConfigurationError: a parameter group now has what cannot be taken over.
        """
        groups = self._groups()
        if why := why_left(groups):
            raise ConfigurationError(
                f"momentum is applied before compression, and a parameter group has {why} now, which only "
                "the optimizer can do. Set it before gradsieve_hvd.DistributedOptimizer is made, or pass "
                "momentum_correction=False."
            )
        kept = [{name: group[name] for name in _TAKEN} for group in groups]
        try:
            for group in groups:
                group.update(dict.fromkeys(_TAKEN, 0.0))
            yield
        finally:
            for group, values in zip(groups, kept, strict=True):
                group.update(values)

    def _groups(self) -> list[dict[str, Any]]:
        optimizer = self._optimizer()
        return [] if optimizer is None else optimizer.param_groups


class _SgdVelocity(Velocity):
    """A step without momentum leaves it as it is, as SGD does.

    settings: returns momentum and weight decay of the step.
    """

    def __init__(self, parameter: Parameter, settings: Callable[[], tuple[float, float]]) -> None:
        dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
        super().__init__(0.0, parameter.numel(), parameter.device, dtype)
        self._parameter, self._settings = parameter, settings

    def advance(self, gradient: Tensor, unscale: float = 1.0) -> Tensor:
        """See `Velocity`."""
        self._momentum, decay = self._settings()
        total = super().advance(gradient, unscale)
        if decay:
            total.view(gradient.shape).add_(self._parameter.detach(), alpha=decay)
        return total

    def commit(self) -> None:
        """See `Velocity`."""
        if self._open and not self._momentum:
            self._pending.copy_(self._committed)
        super().commit()


def is_to_be_taken_over(optimizer: torch.optim.Optimizer, config: CompressionConfig, rank: int) -> bool:
    """Whether an optimizer has momentum that can be applied before compression.

    If it has momentum that cannot, rank 0 logs why.
    """
    groups = optimizer.param_groups
    if config.momentum is not None or not isinstance(optimizer, torch.optim.SGD):
        return False
    if not any(group["momentum"] for group in groups):
        return False
    why = why_not_taken_over(optimizer)
    if not why and config.clip_norm is not None:
        why = "clip_norm"
    if rank == 0 and why:
        _log.warning("momentum is left to the optimizer, after the exchange, because of %s", why)
    elif rank == 0:
        _log.info("momentum and weight decay are applied before compression (momentum_correction)")
    return not why


def why_not_taken_over(optimizer: torch.optim.SGD) -> str:
    """Return what of an SGD only itself can do, in words; empty if its momentum can be applied elsewhere."""
    if type(optimizer) is not torch.optim.SGD:
        return f"{type(optimizer).__name__}, which may change what SGD does,"
    return why_left(optimizer.param_groups)


def why_left(groups: list[dict[str, Any]]) -> str:
    """Return what of SGD's settings only itself can apply; empty if there is none."""
    wanted = ("nesterov", "dampening", "maximize")
    return next((f"{name}={group[name]}" for group in groups for name in wanted if group[name]), "")
