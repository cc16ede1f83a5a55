"""What of a Horovod optimizer must be equal on all ranks."""

from __future__ import annotations

from typing import Any

from gradsieve_hvd.engine.optimizer_order import optimizers_of_this_process
from gradsieve_hvd.engine.settings import Settings
from gradsieve_hvd.engine.settings_check import settings_of

from . import horovod_internals
from .horovod_internals import ADAPTER


def horovod_settings(optimizer: Any, settings: Settings, *, coordinated: bool) -> dict[str, Any]:
    """Return all that must be equal on all ranks, JSON-able. ``coordinated``: there is a coordinator."""
    return settings_of(
        settings,
        horovod_internals.reduced_parameters(optimizer),
        op=horovod_internals.reduction_name(optimizer.op),
        coordinator=coordinated,
        backward_passes_per_step=optimizer.backward_passes_per_step,
    )


def settings_of_waiting(optimizer: Any, *, coordinated: bool) -> list[dict[str, Any]]:
    """Return the settings of the other optimizers of this process that have not been compared yet."""
    found = []
    for other in optimizers_of_this_process():
        settings, adapter = getattr(other, "_compression", None), getattr(other, ADAPTER, None)
        compared = adapter is not None and adapter.reducer.compared
        served = hasattr(other, "op")  # Adasum's has none, and is refused at its own first gradient
        if other is not optimizer and served and isinstance(settings, Settings) and not compared:
            found.append(horovod_settings(other, settings, coordinated=coordinated))
    return found
