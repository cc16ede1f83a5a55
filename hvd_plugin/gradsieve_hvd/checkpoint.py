"""Saving and loading what the compressors of one rank remember: residuals, thresholds, velocities, policies.

Residuals belong to a rank: they hold what *this* rank's gradients still owe the others. So each rank saves
its own file, and they are kept out of ``optimizer.state_dict()``, which Horovod broadcasts from rank 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gradsieve.density import is_count
from gradsieve.errors import ConfigurationError
from gradsieve.parameter_names import matching
from gradsieve.policies import state as saved

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
    prepare(optimizer, state, _is_of_this_rank(optimizer, state))()


def prepare(optimizer: Any, state: Mapping[str, Any], residuals: bool) -> Callable[[], None]:
    """Check a state, whoever saved it, and return what takes it over; until that is called nothing changes.

    1. Check every field, those of residuals and policies by loading them into new ones.
    2. Pair the names with this optimizer's, with and without what ``torch.compile`` and other wrappers add.

    residuals: whether to take residuals and policy over, too; else the state need not have any.

    Raises:
        ConfigurationError: see `load_state_dict`.
    """
    transaction = transaction_of(optimizer)
    _check_version(state)
    config = transaction.compressor.config
    policy = transaction.new_policy()
    step, dense = saved.count(state, "step"), saved.mapping(state, "dense")
    layers: Mapping[str, Any] = {}
    if residuals:
        layers = saved.mapping(state, "layers")
        policy.load_state_dict(dict(saved.mapping(state, "policy")))
    for name, velocity in dense.items():
        with _naming(name):
            saved.require_fields(velocity, "velocity")
    named = dict(seam.reduced_parameters(optimizer))
    names = matching([*layers, *dense], named)
    loaded: list[Entry] = []
    for kind, states in (("layer", layers), ("velocity", dense)):
        for name, part_state in states.items():
            present = names.get(name)
            entry = None if present is None else Entry.of(present, named[present], config, policy)
            part = getattr(entry, kind, None)
            if entry is None or part is None:
                raise ConfigurationError(
                    f"residual state holds the {kind} of '{name}', which this optimizer does not keep; is it "
                    "of another model or another compression?"
                )
            with _naming(name):
                part.load_state_dict(part_state)
            loaded.append(entry)
    clipping = transaction.clipping.prepare(state.get("clipping"))

    def take_over() -> None:
        transaction.replace(loaded, policy)
        clipping()
        transaction.step = step

    return take_over


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Say of which tensor the state is that is refused."""
    try:
        yield
    except ConfigurationError as error:
        if f"'{name}'" in str(error):
            raise
        raise ConfigurationError(f"state of '{name}': {error}") from error


def _check_version(state: Mapping[str, Any]) -> None:
    if not isinstance(state, Mapping):
        raise ConfigurationError(f"residual state: found {type(state).__name__}, expected a dictionary")
    version = state.get("version")
    if not is_count(version, 0) or version != _VERSION:
        raise ConfigurationError(f"residual state has version {version!r}, this gradsieve reads {_VERSION}")


def _is_of_this_rank(optimizer: Any, state: Mapping[str, Any]) -> bool:
    _check_version(state)
    saved_by = (saved.count(state, "rank"), saved.count(state, "size"))
    if saved_by[0] >= saved_by[1]:
        raise ConfigurationError(f"residual state was saved by rank {saved_by[0]} of {saved_by[1]}")
    here = (optimizer.process_set.rank(), optimizer.process_set.size())
    if saved_by != here:
        warnings.warn(
            f"residuals were saved by rank {saved_by[0]} of {saved_by[1]} and are loaded by rank {here[0]} "
            f"of {here[1]}: "
            "starting from zero residuals on this rank",
            stacklevel=3,
        )
    return saved_by == here
