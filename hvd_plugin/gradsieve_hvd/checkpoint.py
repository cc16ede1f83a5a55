"""Saving and loading what the compressors of one rank remember: residuals and thresholds.

Residuals belong to a rank: they hold what *this* rank's gradients still owe the others. So each rank saves
its own file, and they are kept out of ``optimizer.state_dict()``, which Horovod broadcasts from rank 0.
"""

from __future__ import annotations

import warnings
from typing import Any

from gradsieve.errors import ConfigurationError

from . import seam
from .compressor import transaction_of
from .entries import Entry

_VERSION = 1


def state_dict(optimizer: Any) -> dict[str, Any]:
    """Return this rank's residuals and thresholds as of the last completed step, for ``torch.save`` into a
    file per rank.

    Residuals are in unscaled gradient units. The tensors are copies.
    """
    transaction = transaction_of(optimizer)
    return {
        "version": _VERSION,
        "rank": optimizer.process_set.rank(),
        "size": optimizer.process_set.size(),
        "step": transaction.step,
        "layers": {
            entry.name: entry.layer.state_dict()
            for entry in transaction.entries.values()
            if entry.layer is not None
        },
    }


def load_state_dict(optimizer: Any, state: dict[str, Any]) -> None:
    """Load what `state_dict` returned, before the first or between two steps.

    State that another rank saved, or this rank in a job of another size, is not this rank's debt: residuals
    start from zero then, with a warning. The step count (the clock of density warm-up) is taken over in any
    case.

    Raises:
        ConfigurationError: the state is of another version, or its layers do not fit the model; nothing was
            changed.
    """
    transaction = transaction_of(optimizer)
    if state.get("version") != _VERSION:
        raise ConfigurationError(
            f"residual state has version {state.get('version')!r}, this gradsieve reads {_VERSION}"
        )
    layers = state["layers"]
    saved_by, here = (
        (state["rank"], state["size"]),
        (optimizer.process_set.rank(), optimizer.process_set.size()),
    )
    if saved_by != here:
        warnings.warn(
            f"residuals were saved by rank {saved_by[0]} of {saved_by[1]} and are loaded by rank {here[0]} "
            f"of {here[1]}: "
            "starting from zero residuals on this rank",
            stacklevel=2,
        )
        layers = {}
    named = dict(seam.reduced_parameters(optimizer))
    loaded: list[Entry] = []
    for name, layer_state in layers.items():
        entry = transaction.new_entry(named[name]) if name in named else None
        if entry is None or entry.layer is None:
            raise ConfigurationError(
                f"residual state holds layer '{name}', which this optimizer does not compress; is it of "
                "another model?"
            )
        entry.layer.load_state_dict(layer_state)
        loaded.append(entry)
    transaction.replace_entries(loaded)
    transaction.step = int(state["step"])
