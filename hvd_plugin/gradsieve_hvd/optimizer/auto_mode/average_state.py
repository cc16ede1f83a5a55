"""One state of the optimizer for all ranks, whose own ones have parted during steps by themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from gradsieve.errors import NonFiniteGradient, RankMismatch
from gradsieve_hvd.exchange import BucketExchange, DenseExchange, begin_bucket_exchange
from gradsieve_hvd.exchange.wide import WideExchange
from gradsieve_hvd.optimizer.connection import Connection

Layout = dict[str, dict[str, Any]]
"""What a rank has of each parameter, JSON-able: type and shape of a tensor, or a plain value."""


def average_state(
    state: Mapping[Any, dict[str, Any]], named: Mapping[str, Parameter], connection: Connection
) -> None:
    """Set every tensor in an optimizer's state to its mean over those ranks that have it; all ranks call it.

    1. Tell each other which tensors there are, of which type and shape. A rank that had no gradient of a
       parameter may have none.
    2. Sum them, in fp32, those of fp64 in fp64, in one order: all ranks end with the same bits.
    3. Plain numbers, which say the same on all ranks or are lost, become those of the first rank that has
       them. What is neither a tensor of floating-point numbers nor a number stays as it is.

    Args:
        state: of the optimizer, by parameter; changed.
        named: its parameters.
        connection: with the other ranks.

    Raises:
        RankMismatch: on all ranks: a tensor has different types or shapes; nothing was changed.
        NonFiniteGradient: on all ranks: a tensor is not finite on one; nothing was changed.
        ExchangeError: a rank did not answer.
    """
    own = {name: _described(state.get(parameter, {})) for name, parameter in named.items()}
    message = connection.messages.tell(json.dumps(own).encode(), "optimizer state")
    told: list[Layout] = [json.loads(each) for each in message.wait()]
    tensors, numbers = _common(told)
    means: dict[tuple[str, str], Tensor] = {}
    for wide in (False, True):
        places = [each for each, (kind, _, _) in tensors.items() if (kind == "float64") == wide]
        means |= _means(places, tensors, state, named, connection, wide=wide)
    for (name, field), mean in means.items():
        kind, shape, _ = tensors[name, field]
        held = state[named[name]].get(field)
        if isinstance(held, Tensor):
            held.copy_(mean.view(shape))
        else:
            # Counts of steps are kept on the CPU, whatever the parameter is on.
            device = named[name].device if shape else torch.device("cpu")
            state[named[name]][field] = mean.view(shape).to(device, getattr(torch, kind))
    for (name, field), value in numbers.items():
        state[named[name]][field] = value


def _described(of_parameter: Mapping[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {}
    for field, value in of_parameter.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            described[field] = {"kind": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
        elif isinstance(value, int | float):
            described[field] = {"value": value}
    return described


def _common(
    told: Sequence[Layout],
) -> tuple[dict[tuple[str, str], tuple[str, list[int], int]], dict[tuple[str, str], float]]:
    """Return type, shape and number of owners of each tensor, and the plain numbers."""
    tensors: dict[tuple[str, str], tuple[str, list[int], int]] = {}
    numbers: dict[tuple[str, str], float] = {}
    for rank, layout in enumerate(told):
        for name in sorted(layout):
            for field, found in sorted(layout[name].items()):
                if "value" in found:
                    numbers.setdefault((name, field), found["value"])
                    continue
                kind, shape, owners = tensors.get((name, field), (found["kind"], found["shape"], 0))
                if [kind, shape] != [found["kind"], found["shape"]]:
                    raise RankMismatch(
                        f"'{field}' in the optimizer's state of '{name}' is {found['kind']} of shape "
                        f"{found['shape']} on rank {rank} and {kind} of shape {shape} on a rank before it: "
                        "make the optimizers the same on all ranks"
                    )
                tensors[name, field] = (kind, shape, owners + 1)
    return dict(sorted(tensors.items())), dict(sorted(numbers.items()))


def _means(
    places: Sequence[tuple[str, str]],
    tensors: Mapping[tuple[str, str], tuple[str, list[int], int]],
    state: Mapping[Any, dict[str, Any]],
    named: Mapping[str, Parameter],
    connection: Connection,
    *,
    wide: bool,
) -> dict[tuple[str, str], Tensor]:
    if not places:
        return {}
    dtype = torch.float64 if wide else torch.float32
    sizes = [torch.Size(tensors[each][1]).numel() for each in places]
    flat = torch.zeros(sum(sizes), dtype=dtype, device="cpu")
    for (name, field), part in zip(places, flat.split(sizes), strict=True):
        held = state.get(named[name], {}).get(field)
        if isinstance(held, Tensor):
            part.copy_(held.detach().reshape(-1))
    exchange: BucketExchange = WideExchange() if wide else DenseExchange()
    begun = partial(begin_bucket_exchange, exchange, flat)
    sums = connection.submit(begun, "the optimizer's state").wait()
    if sums.refused:
        raise NonFiniteGradient(
            "the optimizer's state is not finite on a rank; the mode was not changed. Start again from a "
            "checkpoint"
        )
    parts = sums.total.split(sizes)
    return {each: part / tensors[each][2] for each, part in zip(places, parts, strict=True)}
