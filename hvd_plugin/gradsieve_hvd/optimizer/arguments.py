"""The arguments of `DistributedOptimizer`: checked, and made into what the rest of the package takes."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from gradsieve.config.base import is_positive
from gradsieve.density import is_count
from gradsieve.errors import ConfigurationError
from gradsieve_hvd.engine.tensors import is_known_dtype, require_known_dtype

HOROVODS_MODULE = "horovod.torch.optimizer"
"""Of the classes of distributed optimizers, ours included."""


def named_from(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Parameter]] | None
) -> list[tuple[str, Parameter]]:
    """Return the optimizer's parameters with their names.

    Raises:
        ConfigurationError: these are no names and parameters, a name comes twice, or a parameter has none or
            no shape yet.
    """
    own = {
        parameter: f"parameter.{i}.{j}"
        for i, group in enumerate(optimizer.param_groups)
        for j, parameter in enumerate(group["params"])
    }
    if named_parameters is None:
        return _with_shapes([(name, parameter) for parameter, name in own.items()])
    given = _pairs(named_parameters)
    names = [name for name, _ in given]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"named_parameters: names must be unique, and {', '.join(twice)} are not")
    known = {parameter for _, parameter in given}
    missing = [tuple(parameter.shape) for parameter in own if parameter not in known]
    if missing:
        raise ConfigurationError(
            f"named_parameters: {len(missing)} of the optimizer's parameters have no name, the first of "
            f"shape {missing[0]}. Pass model.named_parameters() with every parameter of the optimizer."
        )
    return _with_shapes([(name, parameter) for name, parameter in given if parameter in own])


def _pairs(given: Any) -> list[tuple[str, Parameter]]:
    pairs = list(given) if isinstance(given, Iterable) and not isinstance(given, torch.nn.Module) else [given]
    for each in pairs:
        is_pair = isinstance(each, tuple | list) and len(each) == 2
        if not (is_pair and isinstance(each[0], str) and isinstance(each[1], torch.Tensor)):
            raise ConfigurationError(
                f"named_parameters: expected pairs of a name and a parameter, found {type(each).__name__}. "
                "Pass model.named_parameters()."
            )
    return pairs


def _with_shapes(named: list[tuple[str, Parameter]]) -> list[tuple[str, Parameter]]:
    lazy = next((name for name, parameter in named if is_lazy(parameter)), None)
    if lazy is not None:
        raise ConfigurationError(
            f"parameter '{lazy}' has no shape yet, as it belongs to a lazy module. Call the model with "
            "a batch before you make the optimizer."
        )
    return named


def exchanged(named: list[tuple[str, Parameter]]) -> list[tuple[str, Parameter]]:
    """Return the parameters that are exchanged, now or when they have thawed: all but frozen ones of a type
    that cannot be, such as weights of 4 bits, which no optimizer updates.

    Raises:
        ConfigurationError: one of such a type is not frozen.
    """
    kept = [(name, p) for name, p in named if p.requires_grad or is_known_dtype(p.dtype)]
    for name, parameter in kept:
        require_known_dtype(name, parameter.dtype)
    return kept


def added_to(
    optimizer: torch.optim.Optimizer, param_group: dict[str, Any], names: Collection[str]
) -> list[tuple[str, Parameter]]:
    """Add a group by the method of the user's class; return its parameters that are exchanged, with names of
    their own.

    names: of those that there are, also in groups that were taken out since.

    Raises:
        ConfigurationError: one cannot be exchanged; nothing was added.
    """
    super(type(optimizer), optimizer).add_param_group(param_group)  # type: ignore[misc]
    number = len(optimizer.param_groups) - 1
    while any(name.startswith(f"added.{number}.") for name in names):
        number += 1
    group = optimizer.param_groups[-1]["params"]
    try:
        return exchanged([(f"added.{number}.{place}", parameter) for place, parameter in enumerate(group)])
    except ConfigurationError:
        optimizer.param_groups.pop()
        raise


def require_known_parameters(optimizer: torch.optim.Optimizer, known: Collection[Parameter]) -> None:
    """Check that nobody has put parameters into an optimizer's groups by hand: they would be updated with
    this rank's gradients.

    Raises:
        ConfigurationError: one is not among those that are ``known``.
    """
    for i, group in enumerate(optimizer.param_groups):
        for j, parameter in enumerate(group["params"]):
            if parameter.requires_grad and parameter not in known:
                require_known_dtype(f"{i}.{j}", parameter.dtype)  # one that was frozen
                raise ConfigurationError(
                    f"param_groups[{i}]['params'][{j}], of shape {tuple(parameter.shape)}, was put there by "
                    "hand, so its gradient is not exchanged, and ranks would part. Add parameters by "
                    "optimizer.add_param_group(), or make the optimizer again."
                )


def require_plain(optimizer: torch.optim.Optimizer) -> None:
    """Check that an optimizer is one, and not distributed yet, by us or by Horovod.

    Raises:
        ConfigurationError: it is not.
    """
    if isinstance(optimizer, type) or not all(
        hasattr(optimizer, name) for name in ("param_groups", "state", "step")
    ):
        found = optimizer.__name__ if isinstance(optimizer, type) else f"a {type(optimizer).__name__}"
        raise ConfigurationError(
            "DistributedOptimizer(...) takes an optimizer, such as torch.optim.SGD(model.parameters(), "
            f"lr=0.1), and got {found}"
        )
    if type(optimizer).__module__ == HOROVODS_MODULE:
        raise ConfigurationError(
            "the optimizer is distributed already: its gradients would be exchanged twice. Pass the plain "
            "optimizer that it was made of."
        )


def require_no_closure(optimizer: torch.optim.Optimizer) -> None:
    """Check that an optimizer's step can be taken with the gradients that there are.

    Raises:
        ConfigurationError: it asks for a closure, as LBFGS does, which computes several gradients in a step.
    """
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ConfigurationError(
            f"{type(optimizer).__name__} steps with a closure, which computes several gradients: no rank "
            "would wait for the others' between them. Take an optimizer whose step() needs none, such as SGD "
            "or AdamW."
        )


def require_passes(passes: Any) -> None:
    """Check ``backward_passes_per_step=``.

    Raises:
        ConfigurationError: it is not a number of backward passes.
    """
    if not is_count(passes, 1):
        raise ConfigurationError(f"backward_passes_per_step={passes!r}: expected an integer of at least 1")


def group_numbers(groups: Any, named: list[tuple[str, Parameter]]) -> dict[str, int]:
    """Return the number of each parameter's group, by name; those in no group are left out.

    Raises:
        ConfigurationError: ``groups`` is neither a number nor lists of the optimizer's parameters, or one is
            in two of them.
    """
    if groups is None:
        return {}
    if is_count(groups, 1):
        return {name: number * groups // len(named) for number, (name, _) in enumerate(named)}
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in named}
    numbered: dict[str, int] = {}
    for number, group in enumerate(groups if isinstance(groups, list | tuple) else [groups]):
        for each in group if isinstance(group, list | tuple) else [group]:
            name = names.get(each) if isinstance(each, torch.Tensor) else None
            if name is None or name in numbered:
                problem = "which is in two groups" if name else "which is not a parameter of the optimizer"
                raise ConfigurationError(
                    f"groups: found {name or type(each).__name__!r}, {problem}; expected a number of groups, "
                    "or lists of parameters"
                )
            numbered[name] = number
    return numbered


def require_predivide_factor(factor: Any, *, averages: bool) -> None:
    """Check ``gradient_predivide_factor=``.

    Raises:
        ConfigurationError: it is not positive, or nothing is divided.
    """
    if not is_positive(factor):
        raise ConfigurationError(f"gradient_predivide_factor={factor!r}: expected a positive number")
    if factor != 1.0 and not averages:
        raise ConfigurationError(
            f"gradient_predivide_factor={factor!r} splits the division of a mean, and op=Sum divides nothing"
        )


def is_average(op: Any) -> bool:
    """Return whether ``op=`` means a mean, rather than a sum.

    Raises:
        ConfigurationError: it means neither.
    """
    if isinstance(op, str) and op in ("average", "sum"):
        return op == "average"
    import horovod.torch as hvd

    if op not in (hvd.Average, hvd.Sum):
        raise ConfigurationError(
            f"op={op!r}: sparse gradients can be averaged or summed. Use op=hvd.Average or op=hvd.Sum"
        )
    return bool(op == hvd.Average)
