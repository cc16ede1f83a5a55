"""The gradient of a release: what pushes bring for one tensor, weighted, late ones through the gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradsieve import Payload


@dataclass(frozen=True, slots=True)
class Given:
    """One push's gradient of the tensor. weight, gated: see `gradsieve_hvd.server.events.Contribution`."""

    payload: Payload
    weight: float
    gated: bool


@dataclass(frozen=True, slots=True)
class Combined:
    """What became of what was given: ``given = applied + gated + damped``, entry by entry.

    All fp32 [N]. applied: the sum that the optimizer steps with, before it is divided by the ranks. gated:
    what opposed the fresh sum. damped: what weights below 1 took away.
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
    fresh, gated, damped = (torch.zeros(elements, dtype=torch.float32, device="cpu") for _ in range(3))
    for each in given:
        if not each.gated:
            each.payload.add_into(fresh, each.weight)
            _damp(each, each.payload, damped)
    late = [each for each in given if each.gated]
    if not late:
        return Combined(fresh, gated, damped)
    applied = fresh.clone()
    for each in late:
        whole = torch.zeros(elements, dtype=torch.float32, device="cpu")
        each.payload.add_into(whole)
        opposed = torch.where(whole * torch.sign(fresh) < 0, whole, 0.0)
        gated += opposed
        whole -= opposed
        applied.add_(whole, alpha=each.weight)
        damped.add_(whole, alpha=1 - each.weight)
    return Combined(applied, gated, damped)


def _damp(given: Given, payload: Payload, damped: Tensor) -> None:
    if given.weight != 1.0:
        payload.add_into(damped, 1 - given.weight)
