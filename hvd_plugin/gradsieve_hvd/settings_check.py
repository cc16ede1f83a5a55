"""The comparison of settings and models across ranks that precedes the first exchange.

Ranks that disagree would exchange payloads that cannot be combined, or wait for tensors that another rank
never sends. One small allgather finds that out at the first gradient, and every rank raises the same error.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch.nn import Parameter

from gradsieve.errors import ExchangeError, RankMismatch

from . import seam
from .entries import compresses
from .optimizer_order import optimizers_of_this_process, order_problem
from .transport.horovod_allgather import gather_bytes

if TYPE_CHECKING:
    from .compressor import HorovodCompressor

Settings = Mapping[str, Any]

TRANSACTION = "_gradsieve_transaction"
"""The attribute of a Horovod optimizer that holds what gradsieve keeps for it."""
_SHOWN_DIFFERENCES = 5


class _Numbers:
    """next: the lowest number that no optimizer of this process has had."""

    next = 0


def settings_of(optimizer: Any, compressor: HorovodCompressor, *, coordinated: bool) -> dict[str, Any]:
    """Return all that must be equal on all ranks, JSON-able. ``coordinated``: there is a coordinator."""
    return {
        "compression": compressor.describe(),
        "op": seam.reduction_name(optimizer.op),
        "coordinator": coordinated,
        "backward_passes_per_step": optimizer.backward_passes_per_step,
        "parameters": {
            name: f"{_path(compressor, name, parameter)} {parameter.dtype} {tuple(parameter.shape)}"
            for name, parameter in seam.reduced_parameters(optimizer)
        },
    }


def settings_of_waiting(optimizer: Any, *, coordinated: bool) -> list[dict[str, Any]]:
    """Return the settings of the other optimizers of this process that have not been compared yet."""
    from .compressor import compressor_of  # which imports this module, by way of transactions

    found = []
    for other in optimizers_of_this_process():
        compressor = compressor_of(other)
        compared = getattr(getattr(other, TRANSACTION, None), "_settings_compared", False)
        served = hasattr(other, "op")  # Adasum's has none, and is refused at its own first gradient
        if other is not optimizer and served and compressor is not None and not compared:
            found.append(settings_of(other, compressor, coordinated=coordinated))
    return found


def _path(compressor: HorovodCompressor, name: str, parameter: Parameter) -> str:
    return "sparse" if compresses(compressor.config, name, parameter) else "dense"


def warn_if_all_dense(optimizer: Any, compressor: HorovodCompressor) -> None:
    """Warn, on one rank of the set, if no tensor of the model is compressed."""
    config, parameters = compressor.config, seam.reduced_parameters(optimizer)
    if optimizer.process_set.rank() or any(compresses(config, *each) for each in parameters):
        return
    name, largest = max(parameters, key=lambda each: each[1].numel())
    warnings.warn(
        f"nothing is compressed: of {len(parameters)} tensors none is of type float32, float16 or bfloat16 "
        f"and has {config.min_elements:,} elements (min_elements) or more; the largest is '{name}', "
        f"{largest.numel():,} elements of {str(largest.dtype).removeprefix('torch.')}. All travel dense; "
        "lower min_elements, or train without compression.",
        stacklevel=2,
    )


def compare_settings(
    mine: Settings,
    number: int | None,
    process_set: Any,
    timeout: float,
    others: Callable[[], list[dict[str, Any]]] = list,
) -> int:
    """Compare this rank's settings (JSON-able, nested mappings) with all others'.

    Args:
        mine: from `settings_of`.
        number: of this optimizer from an earlier comparison, None at its first one.
        process_set: the optimizer's.
        timeout: how long to wait for the other ranks, in seconds.
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
        messages = gather_bytes(json.dumps(said, sort_keys=True).encode(), "settings", process_set, timeout)
    except ExchangeError as error:
        raise RankMismatch(
            f"not every rank answered the comparison of settings within {timeout:g} s. Does a rank run "
            "without gradsieve's compressor, "
            "or has one not reached its first backward()? Give all ranks the same compression=, or raise "
            "timeout_seconds."
        ) from error
    everyone = [json.loads(message) for message in messages]
    for rank, theirs in enumerate(everyone):
        differences = describe_differences(everyone[0]["settings"], theirs["settings"], rank)
        if differences:
            waiting = gather_bytes(json.dumps(others()).encode(), "settings.others", process_set, timeout)
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


def describe_differences(first: Settings, other: Settings, rank: int) -> str:
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


def _flatten(settings: Settings, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _show(flat: Mapping[str, Any], field: str) -> str:
    return json.dumps(flat[field]) if field in flat else "absent"
