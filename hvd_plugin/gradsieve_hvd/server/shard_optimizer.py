"""The user's optimizer, over a shard's own copies of the weights that it keeps."""

from __future__ import annotations

import copy
import io
import numbers
import pickle
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from gradsieve.errors import PayloadError

from .letters import Hyperparameters


def hyperparameters_of(optimizer: torch.optim.Optimizer) -> Hyperparameters:
    """Return what a user, or a scheduler, may change of each parameter group: numbers, and sequences of
    them; JSON-able.
    """
    return [
        {name: plain for name, value in group.items() if (plain := _plain(value)) is not None}
        for group in optimizer.param_groups
    ]


def set_hyperparameters(optimizer: torch.optim.Optimizer, values: Hyperparameters) -> None:
    """Set what `hyperparameters_of` returned on another rank; what an optimizer keeps in a tensor or a tuple
    stays one.
    """
    for group, given in zip(optimizer.param_groups, values, strict=True):
        for name, value in given.items():
            present = group.get(name)
            if isinstance(present, Tensor):
                present.fill_(value)
            elif isinstance(present, tuple):
                group[name] = tuple(value)
            else:
                group[name] = value


def shard_of(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Parameter], kept: Sequence[int]
) -> tuple[torch.optim.Optimizer, dict[int, Parameter]]:
    """Return an optimizer like ``optimizer`` over copies of some of its parameters, and the copies.

    It is of the same class, with the same parameter groups (empty ones stay, so that they keep their
    numbers), and begins with a copy of the state and of all attributes that ``optimizer`` has, in which
    parameters that are not kept are empty ones; hooks are not taken over. Copies are on the CPU.
    ``optimizer`` is not mutated.

    Args:
        optimizer: the user's.
        parameters: all of its, by number.
        kept: the numbers of those that are copied.

    Returns:
        the optimizer, and the copies by number.
    """
    copies = {number: Parameter(_contiguous_copy(parameters[number])) for number in kept}
    copy_of = {parameters[number]: each for number, each in copies.items()}
    made = copy.copy(optimizer)
    made.param_groups = [
        {
            name: [copy_of[each] for each in value if each in copy_of] if name == "params" else _own(value)
            for name, value in group.items()
        }
        for group in optimizer.param_groups
    ]
    made.state = defaultdict(dict)
    for parameter, each in copy_of.items():
        if parameter in optimizer.state:
            made.state[each] = {name: _own(value) for name, value in optimizer.state[parameter].items()}
    memo: dict[int, Any] = {id(each): copy_of.get(each, _nothing()) for each in parameters}
    for parameter, each in copy_of.items():
        kept_state = made.state.get(each, {})
        memo |= {id(optimizer.state[parameter][name]): value for name, value in kept_state.items()}
    _take_over_attributes(made, optimizer, memo)
    return made, copies


def _take_over_attributes(
    made: torch.optim.Optimizer, optimizer: torch.optim.Optimizer, memo: dict[int, Any]
) -> None:
    """Copy what a user's class keeps beside groups and state, which torch's copies leave out; what cannot be
    copied, as a file, is shared. memo: copies that there are, by what they are copies of.
    """
    memo |= {id(optimizer): made, id(optimizer.param_groups): made.param_groups}
    memo |= {id(optimizer.state): made.state}
    memo |= {id(a): b for a, b in zip(optimizer.param_groups, made.param_groups, strict=True)}
    for name, value in vars(optimizer).items():
        # A scheduler puts a step of its own onto an optimizer, which is not for shards.
        if name not in vars(made) and not callable(getattr(type(optimizer), name, None)):
            setattr(made, name, _copied(value, memo))


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, torch.optim.Optimizer):  # that another is wrapped around
        made = copy.copy(value)
        made.param_groups = _copied(value.param_groups, memo)
        made.state = _copied(value.state, memo)
        _take_over_attributes(made, value, memo)
        return made
    if isinstance(value, Tensor):
        return _own(value)
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # noqa: BLE001 - whatever a user's object raises
        return value


def _nothing() -> Parameter:
    return Parameter(torch.empty(0))


def packed_state(optimizer: torch.optim.Optimizer, copies: Mapping[int, Parameter]) -> Tensor:
    """Return the optimizer's state of a shard's copies, by number, as bytes (uint8)."""
    held = {number: optimizer.state[each] for number, each in copies.items() if each in optimizer.state}
    file = io.BytesIO()
    torch.save(held, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def unpacked_state(packed: Tensor) -> dict[int, dict[str, Any]]:
    """Return what `packed_state` was given; tensors and plain numbers only.

    Raises:
        PayloadError: it is something else.
    """
    try:
        held: dict[int, dict[str, Any]] = torch.load(io.BytesIO(bytes(packed.numpy())), weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        raise PayloadError(
            f"state of the optimizer: {error}; it may hold tensors and plain numbers only"
        ) from error
    return held


def _contiguous_copy(parameter: Parameter) -> Tensor:
    return parameter.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, numbers.Real):
        return _number(value)
    if isinstance(value, tuple | list) and all(isinstance(each, numbers.Real) for each in value):
        return [_number(each) for each in value]
    return None


def _number(value: numbers.Real) -> float:
    """Return Python's number for any, also one of NumPy's: a schedule may take it from a table."""
    if isinstance(value, bool | int | float):
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _own(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, Tensor) else copy.deepcopy(value)
