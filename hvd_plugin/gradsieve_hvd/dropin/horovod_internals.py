"""Everything that gradsieve knows about the inside of Horovod 0.28's ``DistributedOptimizer``.

Horovod hands a compressor a bare tensor: no name, no reduction, no process set. All of that hangs on the
optimizer, and the optimizer is found in one way: **the frame that calls** ``compress`` **holds it as**
``self``. Horovod calls ``compress`` in ``_allreduce_grad_async(self, p)`` and, when ``groups`` is set, in a
list comprehension of ``_grouped_allreduce_grad_async(self, ps)``, which up to Python 3.11 is a frame of its
own (``self`` is then one of its free variables) and from 3.12 on is part of the caller's. No other module
reads a private attribute of Horovod.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.engine.tensors import require_known_dtype

ADAPTER = "_gradsieve_adapter"
"""The attribute of a Horovod optimizer that holds what gradsieve keeps for it."""

CHANGES_AFTER_DECOMPRESS = 1  # synchronize() sets p.grad to what decompress returns, itself
_FRAMES_ABOVE_COMPRESS = 2  # compress <- (list comprehension <-) _allreduce_grad_async
_FRAMES_ABOVE_HOOKS = 8  # hook <- torch's wrapper of step <- Horovod's step; the rest is room for others'


def caller(compressor: object, depth: int) -> tuple[Any, object]:
    """Return the Horovod optimizer whose method is calling ``compress``, and that method's ``p``, if any.

    ``depth`` is the number of frames between this function and Horovod's (1: the direct caller's caller).

    Raises:
        ConfigurationError: the caller is no ``DistributedOptimizer``.
    """
    frame = sys._getframe(depth + 1)
    for _ in range(_FRAMES_ABOVE_COMPRESS):
        owner = frame.f_locals.get("self")
        if isinstance(owner, Optimizer) and getattr(owner, "_compression", None) is compressor:
            return owner, frame.f_locals.get("p")
        if frame.f_back is None:
            break
        frame = frame.f_back
    raise ConfigurationError(
        "compress() was not called by hvd.DistributedOptimizer: gradsieve needs the parameter's name to "
        "pair it "
        "across ranks. Pass the compressor as hvd.DistributedOptimizer(..., compression=...); "
        "hvd.allreduce() cannot use it."
    )


def reduction_name(op: Any) -> str:
    """Name of a Horovod reduction constant (they are plain integers)."""
    import horovod.torch as hvd

    names = {
        hvd.Average: "Average",
        hvd.Sum: "Sum",
        hvd.Adasum: "Adasum",
        hvd.Min: "Min",
        hvd.Max: "Max",
        hvd.Product: "Product",
    }
    return names.get(op, str(op))


def parameter_of(optimizer: Any, gradient: Tensor, likely: object = None) -> Parameter:
    """Return the parameter whose ``.grad`` is this very tensor.

    ``likely`` (the caller's loop variable) is looked at first: searching through all parameters for each
    would take milliseconds per step in large models.

    Raises:
        ConfigurationError: no parameter of the optimizer has it.
    """
    if isinstance(likely, Parameter) and likely.grad is gradient:
        return likely
    for parameter in parameters(optimizer):
        if parameter.grad is gradient:
            return parameter
    raise ConfigurationError(
        f"a gradient of shape {tuple(gradient.shape)} belongs to no parameter of the optimizer, so it has "
        "no name to pair it across "
        "ranks. Was p.grad replaced in a hook that runs during backward()? Change gradients between "
        "synchronize() and step()."
    )


def name_of(optimizer: Any, parameter: Parameter) -> str:
    """Horovod's name for the parameter, the same on every rank.

    Raises:
        ConfigurationError: the parameter was never named.
    """
    name = optimizer._parameter_names.get(parameter)
    if name is None:
        raise ConfigurationError(
            f"a parameter of shape {tuple(parameter.shape)} has no name, so its gradient cannot be paired "
            "across ranks. "
            "Pass named_parameters=model.named_parameters() with every parameter of the optimizer."
        )
    return cast("str", name)


def parameters(optimizer: Any) -> Iterator[Parameter]:
    """All parameters of the optimizer, in the order of its groups."""
    for group in optimizer.param_groups:
        yield from group["params"]


def reduced_parameters(optimizer: Any) -> list[tuple[str, Parameter]]:
    """(name, parameter) of everything that Horovod reduces, sorted by name."""
    return sorted(((name_of(optimizer, p), p) for p in optimizer._requires_update), key=lambda item: item[0])


def backward_reached(optimizer: Any, parameter: Parameter) -> bool:
    """Whether backward() has produced a gradient for the parameter since the last ``synchronize()``.

    Horovod counts its backward passes down and resets the counter in ``synchronize()``.
    """
    return bool(optimizer._allreduce_delay[parameter] < optimizer.backward_passes_per_step)


def skips_synchronize(optimizer: Any) -> bool:
    """Whether the caller is within ``skip_synchronize()``."""
    return not optimizer._should_synchronize


def will_synchronize(optimizer: Any) -> bool:
    """Whether, seen from a step pre-hook, ``step()`` is still going to exchange gradients before the update.

    ``step()`` runs the hooks twice: before its ``synchronize()``, and (as the optimizer that it derives from)
    after it. The second time ``step`` itself is among the callers.
    """
    if skips_synchronize(optimizer):
        return False
    step = inspect.unwrap(type(optimizer).step).__code__
    frame = sys._getframe(1)
    for _ in range(_FRAMES_ABOVE_HOOKS):
        if frame.f_code is step:
            return False
        if frame.f_back is None:
            break
        frame = frame.f_back
    return True


def everything_submitted(optimizer: Any) -> bool:
    """Whether each reduced parameter has a collective in flight, so that ``synchronize()`` will add none."""
    submitted: set[Parameter] = set()
    for key, (handle, _) in optimizer._handles.items():
        if handle is not None:
            submitted.update(key if isinstance(key, tuple) else (key,))
    return bool(optimizer._requires_update <= submitted)


def handle_of(optimizer: Any, parameter: Parameter) -> int | None:
    """Horovod's handle of the all-reduce that the parameter takes part in; None if it is not in flight.
    Callable from any thread.
    """
    for key, (handle, _) in list(optimizer._handles.items()):
        if isinstance(handle, int) and (
            key is parameter or (isinstance(key, tuple) and any(key_p is parameter for key_p in key))
        ):
            return handle
    return None


def adopt_added_parameters(optimizer: Any) -> bool:
    """Make Horovod reduce the parameters that ``add_param_group`` brought after its construction.

    Stock Horovod registers its hooks once and silently leaves later parameters different on every rank. They
    get names from their position (the same on every rank that adds the same groups) and the hook that the
    others have.

    Returns:
        Whether there were any.

    Raises:
        ConfigurationError: one is of a type that cannot be exchanged.
    """
    added = False
    for i, group in enumerate(optimizer.param_groups):
        for j, parameter in enumerate(group["params"]):
            if not parameter.requires_grad or parameter in optimizer._requires_update:
                continue
            name = optimizer._parameter_names.setdefault(parameter, f"added.{i}.{j}")
            require_known_dtype(name, parameter.dtype)
            optimizer._allreduce_delay[parameter] = optimizer.backward_passes_per_step
            if optimizer._groups is not None:
                optimizer._p_to_group[parameter] = (parameter,)
                optimizer._group_counts[(parameter,)] = 0
            optimizer._requires_update.add(parameter)
            with torch.enable_grad():
                accumulator = cast("Any", parameter.expand_as(parameter).grad_fn).next_functions[0][0]
            accumulator.register_hook(optimizer._make_hook(parameter))
            optimizer._grad_accs.append(accumulator)
            added = True
    return added
