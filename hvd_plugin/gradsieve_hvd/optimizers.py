"""What users ask of a distributed optimizer, and give it back."""

from __future__ import annotations

import dataclasses
from typing import Any

from gradsieve.errors import ConfigurationError

from .ddp.state import DdpState
from .dropin.compressor import adapter_of
from .engine import checkpoint
from .engine.reducer import Reducer
from .engine.statistics import StepStatistics
from .optimizer.synchronizer import Synchronizer


def statistics(optimizer: Any) -> StepStatistics:
    """Bytes and densities of the optimizer's last completed step on this rank, and what waits now in the
    residuals of frozen parameters.

    Raises:
        ConfigurationError: the optimizer has no gradsieve compressor.
    """
    reducer = reducer_of(optimizer)
    return dataclasses.replace(reducer.counter.last, waiting=reducer.waiting())


def state_dict(optimizer: Any) -> dict[str, Any]:
    """Return this rank's residuals, thresholds, velocities and policy as of the last completed step, for
    ``torch.save`` into a file per rank.

    Residuals are in unscaled gradient units. The tensors are copies.

    Raises:
        ConfigurationError: the optimizer has no gradsieve compressor.
    """
    return checkpoint.state_of(reducer_of(optimizer))


def load_state_dict(optimizer: Any, state: dict[str, Any]) -> None:
    """Load what `state_dict` returned, before the first or between two steps.

    State that another rank saved, or this rank in a job of another size, is not this rank's debt: residuals,
    and with them the policy, start anew then, with a warning. What is the same on all ranks is taken over in
    any case: the step count (the clock of density warm-up) and the velocities of dense tensors.

    Raises:
        ConfigurationError: the state is of another version, or does not fit the model or the compressor;
            nothing was changed.
    """
    reducer = reducer_of(optimizer)
    checkpoint.prepare(reducer, state, checkpoint.is_of_this_rank(reducer, state))()


def reducer_of(optimizer: Any) -> Reducer:
    """Return what gradsieve keeps for a distributed optimizer.

    Raises:
        ConfigurationError: the optimizer has no gradsieve compressor.
    """
    reducer = find_reducer(optimizer)
    if reducer is None:
        raise ConfigurationError(
            "this optimizer is no hvd.DistributedOptimizer with a gradsieve compressor, nor a "
            "gradsieve_hvd.DistributedOptimizer, nor a gradsieve_hvd.DdpState"
        )
    return reducer


def restart(optimizer: Any) -> None:
    """Have an optimizer that compresses go on among ranks that may be others than before; all call it."""
    synchronizer = getattr(optimizer, "synchronizer", None)
    reducer = find_reducer(optimizer)
    if isinstance(synchronizer, Synchronizer):
        synchronizer.restart()
    elif reducer is not None:
        reducer.restart()


def find_reducer(optimizer: Any) -> Reducer | None:
    """Return what gradsieve keeps for a distributed optimizer; None if it does not compress."""
    if isinstance(optimizer, DdpState):
        return optimizer.reducer
    synchronizer = getattr(optimizer, "synchronizer", None)
    if isinstance(synchronizer, Synchronizer):
        return synchronizer.reducer
    adapter = adapter_of(optimizer)
    return None if adapter is None else adapter.reducer
