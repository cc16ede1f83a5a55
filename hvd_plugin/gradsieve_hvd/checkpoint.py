"""Saving and loading what the compressors of one rank remember: residuals, thresholds, velocities, policies.

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

_VERSION = 2


def state_dict(optimizer: Any) -> dict[str, Any]:
    """Return this rank's residuals, thresholds, velocities and policy as of the last completed step, for
    ``torch.save`` into a file per rank.

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
        "dense": {
            entry.name: entry.velocity.state_dict()
            for entry in transaction.entries.values()
            if entry.velocity is not None
        },
        "policy": transaction.policy.state_dict(),
        "clipping": transaction.clipping.state_dict(),
    }


def load_state_dict(optimizer: Any, state: dict[str, Any]) -> None:
    """Load what `state_dict` returned, before the first or between two steps.

    State that another rank saved, or this rank in a job of another size, is not this rank's debt: residuals,
    and with them the policy, start anew then, with a warning. What is the same on all ranks is taken over in
    any case: the step count (the clock of density warm-up) and the velocities of dense tensors.

    Raises:
        ConfigurationError: the state is of another version, or does not fit the model or the compressor;
            nothing was changed.
    """
    take_over(optimizer, state, _is_of_this_rank(optimizer, state))


def take_over(optimizer: Any, state: dict[str, Any], residuals: bool) -> None:
    """Load a state, with or without the ``residuals`` and the policy in it, whoever saved them.

    Raises:
        ConfigurationError: see `load_state_dict`.
    """
    transaction = transaction_of(optimizer)
    if state.get("version") != _VERSION:
        raise ConfigurationError(
            f"residual state has version {state.get('version')!r}, this gradsieve reads {_VERSION}"
        )
    config = transaction.compressor.config
    policy = transaction.new_policy()
    layers: dict[str, Any] = {}
    if residuals:
        layers = state["layers"]
        policy.load_state_dict(state["policy"])
    named = dict(seam.reduced_parameters(optimizer))
    loaded: list[Entry] = []
    for kind, states in (("layer", layers), ("velocity", state["dense"])):
        for name, saved in states.items():
            entry = Entry.of(name, named[name], config, policy) if name in named else None
            part = getattr(entry, kind, None)
            if entry is None or part is None:
                raise ConfigurationError(
                    f"residual state holds the {kind} of '{name}', which this optimizer does not keep; is it "
                    "of another model or another compression?"
                )
            part.load_state_dict(saved)
            loaded.append(entry)
    transaction.clipping.load_state_dict(state.get("clipping"))
    transaction.replace(loaded, policy)
    transaction.step = int(state["step"])


def _is_of_this_rank(optimizer: Any, state: dict[str, Any]) -> bool:
    saved_by = (state["rank"], state["size"])
    here = (optimizer.process_set.rank(), optimizer.process_set.size())
    if saved_by != here:
        warnings.warn(
            f"residuals were saved by rank {saved_by[0]} of {saved_by[1]} and are loaded by rank {here[0]} "
            f"of {here[1]}: "
            "starting from zero residuals on this rank",
            stacklevel=3,
        )
    return saved_by == here
