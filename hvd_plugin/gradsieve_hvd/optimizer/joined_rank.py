"""What a rank does that has run out of data while others train on: it takes part with nothing.

See `joining` for what the ranks tell each other.
"""

from __future__ import annotations

from typing import Any

import torch

from gradsieve.errors import ConfigurationError

from .synchronizer import Synchronizer


def join(synchronizer: Synchronizer, optimizer: torch.optim.Optimizer) -> int:
    """Take part with nothing until all ranks have joined; return the one that did so last.

    1. Take part in a round. What it drops of the others' sum goes to this rank's residual, which waits.
    2. If all have joined, it was the last one: forget it.
    3. Else wait until those that train have taken the step, or skipped it, and do so, too, except for the
       update.
    4. When all have joined: take over weights, the state of ``optimizer`` (the user's) and velocities of the
       one that did so last, if steps were taken without this rank.

    Raises:
        ConfigurationError: gradients are being exchanged.
        NonFiniteGradient: on all ranks; those that go on join again, or train on.
        ExchangeError: a rank did not take part in time.
    """
    if synchronizer.in_round:
        raise ConfigurationError(
            "join() was called between backward() and step(), while gradients are exchanged. Take the "
            "step first, or leave out the last backward()."
        )
    joining, reducer = synchronizer.joining, synchronizer.reducer
    joining.joined = reducer.abstains = True
    try:
        while not _take_part_with_nothing(synchronizer):
            if joining.was_taken():
                synchronizer.outcome.commit()
        reducer.skip()
        reducer.uneven = False
        last, state = joining.end(lambda: _common_state(synchronizer, optimizer))
    finally:
        joining.joined = reducer.abstains = False
        _forget_gradients(synchronizer)
    if state is not None:
        _take_over(state, synchronizer, optimizer)
    return last


def _take_part_with_nothing(synchronizer: Synchronizer) -> bool:
    """Return whether all ranks did so."""
    _forget_gradients(synchronizer)
    synchronizer.synchronize()
    if synchronizer.joining.all_joined:
        return True
    synchronizer.reducer.before_update()
    return False


def _forget_gradients(synchronizer: Synchronizer) -> None:
    for parameter in synchronizer.named.values():
        parameter.grad = None


def _common_state(synchronizer: Synchronizer, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what is the same on all ranks that train."""
    return {
        "parameters": {name: parameter.detach() for name, parameter in synchronizer.named.items()},
        "optimizer": optimizer.state_dict(),
        "velocities": {
            state.name: state.velocity.state_dict()
            for state in synchronizer.reducer.states.values()
            if state.compressor is None and state.velocity is not None
        },
    }


def _take_over(state: dict[str, Any], synchronizer: Synchronizer, optimizer: torch.optim.Optimizer) -> None:
    for name, value in state["parameters"].items():
        synchronizer.named[name].detach().copy_(value)
    optimizer.load_state_dict(state["optimizer"])
    for name, saved in state["velocities"].items():
        velocity = synchronizer.reducer.states[name].velocity
        assert velocity is not None, "settings are the same on all ranks"
        velocity.load_state_dict(saved)
