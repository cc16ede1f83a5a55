"""The gradient of a release: what pushes bring for one tensor, weighted, late ones through the gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradsieve import Payload

_NOTHING = torch.zeros((), device="cpu")


@dataclass(frozen=True, slots=True)
class Given:
    """One push's gradient of the tensor. weight, gated: see `gradsieve_hvd.server.events.Contribution`."""

    payload: Payload
    weight: float
    gated: bool


@dataclass(frozen=True, slots=True)
class Combined:
    """What became of what was given: ``given = applied + gated + damped``, entry by entry.

    All fp32 [N], or one zero for all where there is nothing. applied: the sum that the optimizer steps with,
    before it is divided by the ranks. gated: what opposed the fresh sum. damped: what weights below 1 took
    away.
    """

    applied: Tensor
    gated: Tensor
    damped: Tensor


def combine(given: Sequence[Given], elements: int) -> Combined:
    """Combine the gradients of a tensor of ``elements`` elements, in the order given (METHODS D.4).

    1. Fresh sum: weight · gradient of those that are not gated.
    2. Of a gated gradient, drop the entries whose sign opposes the fresh sum (where that is zero, none).
    3. Add weight · the rest.
    """
    late = [each for each in given if each.gated]
    fresh = _zeros(elements)
    damped = _zeros(elements) if any(each.weight != 1 for each in given) else None
    for each in given:
        if not each.gated:
            each.payload.add_into(fresh, each.weight)
            if damped is not None:
                each.payload.add_into(damped, 1 - each.weight)
    if not late:
        return Combined(fresh, _NOTHING, _NOTHING if damped is None else damped)
    gated = _zeros(elements)
    applied = fresh.clone()
    for each in late:
        whole = _zeros(elements)
        each.payload.add_into(whole)
        opposed = torch.where(whole * torch.sign(fresh) < 0, whole, 0.0)
        gated += opposed
        whole -= opposed
        applied.add_(whole, alpha=each.weight)
        if damped is not None:
            damped.add_(whole, alpha=1 - each.weight)
    return Combined(applied, gated, _NOTHING if damped is None else damped)


def _zeros(elements: int) -> Tensor:
    return torch.zeros(elements, dtype=torch.float32, device="cpu")
