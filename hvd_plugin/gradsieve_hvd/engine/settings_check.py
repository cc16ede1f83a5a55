"""The comparison of settings and models across ranks that precedes the first exchange.

Ranks that disagree would exchange payloads that cannot be combined, or wait for tensors that another rank
never sends. One small allgather finds that out at the first gradient, and every rank raises the same error.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.nn import Parameter

from gradsieve.errors import ExchangeError, RankMismatch
from gradsieve_hvd.transport.messages import Messages

from .optimizer_order import order_problem
from .parameters import compresses
from .settings import Settings

Description = Mapping[str, Any]
"""All that must be equal on all ranks, JSON-able."""

_SHOWN_DIFFERENCES = 5


class _Numbers:
    """next: the lowest number that no optimizer of this process has had."""

    next = 0


def settings_of(
    settings: Settings, parameters: Sequence[tuple[str, Parameter]], order: Sequence[str] = (), **others: Any
) -> dict[str, Any]:
    """Return what must be equal on all ranks: the user's settings, how each parameter's gradient travels, and
    ``others`` (JSON-able).

    order: names of parameters, where those that travel together are told apart by their places.
    """
    return {
        "compression": settings.describe(),
        **others,
        "order of parameters": {str(place): name for place, name in enumerate(order)},
        "parameters": {
            name: f"{_path(settings, name, parameter)} {parameter.dtype} {tuple(parameter.shape)}"
            for name, parameter in parameters
        },
    }


def _path(settings: Settings, name: str, parameter: Parameter) -> str:
    return "sparse" if compresses(settings.config, name, parameter) else "dense"


def warn_if_all_dense(settings: Settings, parameters: Sequence[tuple[str, Parameter]]) -> None:
    """Warn if no tensor of the model is compressed; for one rank to call."""
    if not parameters or any(compresses(settings.config, *each) for each in parameters):
        return
    name, largest = max(parameters, key=lambda each: each[1].numel())
    warnings.warn(
        f"nothing is compressed: of {len(parameters)} tensors none is of type float32, float16 or bfloat16 "
        f"and has {settings.config.min_elements:,} elements (min_elements) or more; the largest is '{name}', "
        f"{largest.numel():,} elements of {str(largest.dtype).removeprefix('torch.')}. All travel dense; "
        "lower min_elements, or train without compression.",
        stacklevel=2,
    )


def compare_settings(
    mine: Description,
    number: int | None,
    messages: Messages,
    timeout: float,
    others: Callable[[], list[dict[str, Any]]] = list,
) -> int:
    """Compare this rank's settings (JSON-able, nested mappings) with all others'.

    Args:
        mine: from `settings_of`.
        number: of this optimizer from an earlier comparison, None at its first one.
        messages: to the other ranks.
        timeout: how long they may take to answer, in seconds, for the error's text.
        others: returns the settings of this rank's optimizers that have not begun yet; only called where
            settings differ, to find out whether it is a matter of order.

    Returns:
        A number for the optimizer that is the same on all ranks, and another one for each of them. Ranks that
        joined later have seen fewer optimizers than others: the highest count holds.

    Raises:
        RankMismatch: on every rank, naming the differing fields with both values; or when a rank does not
            take part at all.
    """
    said = {"number": _Numbers.next if number is None else number, "settings": mine}
    try:
        told = messages.tell(json.dumps(said, sort_keys=True).encode(), "settings").wait()
    except ExchangeError as error:
        raise RankMismatch(
            f"not every rank answered the comparison of settings within {timeout:g} s. Does a rank run "
            "without gradsieve's compressor, has one not reached its first backward(), or do ranks begin "
            "several optimizers in another order? Give all ranks the same compression= and order, or raise "
            "timeout_seconds."
        ) from error
    everyone = [json.loads(message) for message in told]
    for rank, theirs in enumerate(everyone):
        differences = describe_differences(everyone[0]["settings"], theirs["settings"], rank)
        if differences:
            waiting = messages.tell(json.dumps(others()).encode(), "settings.others").wait()
            problem = order_problem(
                [each["settings"] for each in everyone], [json.loads(each) for each in waiting]
            )
            if problem:
                raise RankMismatch(problem)
            raise RankMismatch(
                f"ranks run with different settings: {differences}. Start every rank with the same ones."
            )
    agreed: int = max(theirs["number"] for theirs in everyone)
    _Numbers.next = max(_Numbers.next, agreed + 1)
    return agreed


def describe_differences(first: Description, other: Description, rank: int) -> str:
    """The differing fields of rank 0's settings and another rank's, with both values; empty when they
    agree.
    """
    a, b = _flatten(first), _flatten(other)
    fields = sorted(field for field in a.keys() | b.keys() if a.get(field) != b.get(field))
    shown = [
        f"{field} is {_show(a, field)} on rank 0 and {_show(b, field)} on rank {rank}"
        for field in fields[:_SHOWN_DIFFERENCES]
    ]
    if len(fields) > _SHOWN_DIFFERENCES:
        shown.append(f"and {len(fields) - _SHOWN_DIFFERENCES} more fields differ")
    return "; ".join(shown)


def _flatten(settings: Description, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _show(flat: Mapping[str, Any], field: str) -> str:
    return json.dumps(flat[field]) if field in flat else "absent"
