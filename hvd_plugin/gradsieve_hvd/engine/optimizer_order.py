"""Ranks that begin their optimizers in different orders are told so.

Optimizers are compared across ranks when they begin: a rank's first with the others' first. Where the orders
differ, two different optimizers meet, and what differs between them is not what is wrong.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

Settings = Mapping[str, Any]

_SHOWN = 3


def optimizers_of_this_process() -> list[Any]:
    """Return all optimizers that exist here. Slow: it looks through all objects."""
    gc.collect()  # those that nobody uses any more would look as if they were still to begin
    return [each for each in gc.get_objects() if issubclass(type(each), Optimizer)]


def order_problem(begun: Sequence[Settings], waiting: Sequence[Sequence[Settings]]) -> str:
    """Say which ranks begin their optimizers in another order than rank 0; empty if that is not the reason.

    begun: settings of the optimizer that each rank begins now. waiting: those of the optimizers that it has
    not begun yet. It is a matter of order if each of two ranks has the other's among those that wait.
    """
    others = [
        rank
        for rank, settings in enumerate(begun)
        if not _same(settings, begun[0])
        and any(_same(settings, each) for each in waiting[0])
        and any(_same(begun[0], each) for each in waiting[rank])
    ]
    if not others:
        return ""
    rank = others[0]
    return (
        "the ranks begin their optimizers in a different order: rank 0 begins with the one of "
        f"{_parameters(begun[0])}, rank {rank} with that of {_parameters(begun[rank])}; each still has the "
        "other's to begin. Give every optimizer its first backward() in the same order on all ranks."
    )


def _same(one: Settings, other: Settings) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _parameters(settings: Settings) -> str:
    names = sorted(settings["parameters"])
    shown = ", ".join(f"'{name}'" for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
