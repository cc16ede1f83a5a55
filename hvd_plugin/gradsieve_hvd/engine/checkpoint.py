"""Saving and loading what the compressors of one rank remember: residuals, thresholds, velocities, policies.

Residuals belong to a rank: they hold what *this* rank's gradients still owe the others. So each rank saves
its own file, and they are kept out of ``optimizer.state_dict()``, which Horovod broadcasts from rank 0.

A residual r of one of P ranks is paid as r / P where gradients are averaged, and as r where they are summed.
So when P ranks become Q, it goes on as r * Q / P, or as it is: what the rank owes the weights stays the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from gradsieve.density import is_count
from gradsieve.errors import ConfigurationError
from gradsieve.parameter_names import matching
from gradsieve.policies import state as saved
from gradsieve_hvd.transport.messages import Messages

from .parameters import ParameterState
from .reducer import Reducer

VERSION = 2


def state_of(reducer: Reducer) -> dict[str, Any]:
    """Return this rank's residuals, thresholds, velocities and policy as of the last completed step, for
    ``torch.save`` into a file per rank.

    Residuals are in unscaled gradient units. The tensors are copies.
    """
    return {
        "version": VERSION,
        "rank": reducer.messages.rank,
        "size": reducer.messages.size,
        "step": reducer.step,
        "layers": {
            state.name: state.compressor.state_dict()
            for state in reducer.states.values()
            if state.compressor is not None
        },
        # Of dense tensors, and of compressed ones whose optimizer's momentum is applied before compression.
        "dense": {
            state.name: state.velocity.state_dict()
            for state in reducer.states.values()
            if state.velocity is not None
        },
        "policy": reducer.policy.state_dict(),
        "clipping": reducer.clipping.state_dict(),
    }


def prepare(reducer: Reducer, state: Mapping[str, Any], residuals: bool) -> Callable[[], None]:
    """Check a state, whoever saved it, and return what takes it over; until that is called nothing changes.

    1. Check every field, those of residuals and policies by loading them into new ones.
    2. Multiply residuals so that they owe as much among the ranks that there are now; see above.
    3. Pair the names with this optimizer's, with and without what ``torch.compile`` and other wrappers add.

    residuals: whether to take residuals and policy over, too; else the state need not have any.

    Raises:
        ConfigurationError: the state is of another version, or does not fit the model or the settings.
    """
    require_version(state)
    policy = reducer.new_policy()
    step, dense = saved.count(state, "step"), saved.mapping(state, "dense")
    layers: Mapping[str, Any] = {}
    if residuals:
        layers = owing_as_much(saved.mapping(state, "layers"), _world_factor(reducer, state))
        policy.load_state_dict(dict(saved.mapping(state, "policy")))
    for name, velocity in dense.items():
        with _naming(name):
            saved.require_fields(velocity, "velocity")
    named = dict(reducer.named_parameters())
    names = matching([*layers, *dense], named)
    loaded: dict[str, ParameterState] = {}
    for kind, attribute, states in (("layer", "compressor", layers), ("velocity", "velocity", dense)):
        for name, part_state in states.items():
            present = names.get(name)
            if present is not None and present not in loaded:
                loaded[present] = reducer.new_state(present, named[present], policy)
            part = None if present is None else getattr(loaded[present], attribute)
            if part is None:
                raise ConfigurationError(
                    f"residual state holds the {kind} of '{name}', which this optimizer does not keep; is it "
                    "of another model or another compression?"
                )
            with _naming(name):
                part.load_state_dict(part_state)
    clipping = reducer.clipping.prepare(state.get("clipping"))

    def take_over() -> None:
        reducer.replace(list(loaded.values()), policy, step)
        clipping()

    return take_over


def _world_factor(reducer: Reducer, state: Mapping[str, Any]) -> float:
    """Return what a residual is multiplied by, of a rank that saved it among others."""
    if not reducer.averages:
        return 1.0
    return reducer.messages.size / max(saved.count(state, "size"), 1)


def owing_as_much(layers: Mapping[str, Any], factor: float) -> Mapping[str, Any]:
    """Return states of layers with residuals multiplied; what is not one is left for others to refuse."""
    if factor == 1.0:
        return layers
    scaled = {}
    for name, state in layers.items():
        feedback = state.get("feedback") if isinstance(state, Mapping) else None
        residual = feedback.get("residual") if isinstance(feedback, Mapping) else None
        if feedback is not None and isinstance(residual, Tensor):
            scaled[name] = {**state, "feedback": {**feedback, "residual": residual * factor}}
        else:
            scaled[name] = state
    return scaled


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Say of which tensor the state is that is refused."""
    try:
        yield
    except ConfigurationError as error:
        if f"'{name}'" in str(error):
            raise
        raise ConfigurationError(f"state of '{name}': {error}") from error


def require_version(state: Mapping[str, Any]) -> None:
    """Check that a state was saved by a release that writes as this one does.

    Raises:
        ConfigurationError: it was not.
    """
    if not isinstance(state, Mapping):
        raise ConfigurationError(f"residual state: found {type(state).__name__}, expected a dictionary")
    version = state.get("version")
    if not is_count(version, 0) or version != VERSION:
        raise ConfigurationError(f"residual state has version {version!r}, this gradsieve reads {VERSION}")


def is_of_this_rank(messages: Messages, state: Mapping[str, Any]) -> bool:
    """Whether this rank of a job of this size saved the state; warns if not.

    messages: among the job's ranks.

    Raises:
        ConfigurationError: it is of another version, or says what cannot be.
    """
    require_version(state)
    saved_by = (saved.count(state, "rank"), saved.count(state, "size"))
    if saved_by[0] >= saved_by[1]:
        raise ConfigurationError(f"residual state was saved by rank {saved_by[0]} of {saved_by[1]}")
    here = (messages.rank, messages.size)
    if saved_by != here:
        warnings.warn(
            f"residuals were saved by rank {saved_by[0]} of {saved_by[1]} and are loaded by rank {here[0]} "
            f"of {here[1]}: "
            "starting from zero residuals on this rank",
            stacklevel=3,
        )
    return saved_by == here
