"""Saving and loading what one rank remembers between rounds of local steps: its residuals.

Within a round weights differ from rank to rank, and each rank's differences are known only together with the
weights that the round began with: nothing is saved there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gradsieve.errors import ConfigurationError
from gradsieve.parameter_names import matching
from gradsieve.policies import state as saved
from gradsieve_hvd.engine import checkpoint
from gradsieve_hvd.transport.messages import Messages

from .pseudo_gradient import PseudoGradient
from .rounds import LocalRounds

_MODE = "local"


def state_of(rounds: LocalRounds) -> dict[str, Any]:
    """Return this rank's residuals as of the last round; the tensors are copies.

    Raises:
        ConfigurationError: within a round.
    """
    if rounds.taken:
        raise ConfigurationError(
            f"the state was asked for after {rounds.taken} of {rounds.rules.steps} local steps, when every "
            "rank has weights of its own. Save between two rounds, or call optimizer.synchronize() on all "
            "ranks before, which ends this one."
        )
    return {
        "version": checkpoint.VERSION,
        "mode": _MODE,
        "rank": rounds.messages.rank,
        "size": rounds.messages.size,
        "rounds": rounds.rounds,
        "layers": {name: layer.compressor.state_dict() for name, layer in rounds.layers.items()},
    }


def prepare(rounds: LocalRounds, state: Mapping[str, Any], residuals: bool) -> Callable[[], None]:
    """Check a state, whoever saved it, and return what takes it over; until that is called nothing changes.

    What a rank owes the weights stays the same when the number of ranks has changed; see `engine.checkpoint`.

    residuals: whether to take residuals over; else they begin at zero, and the state need not have any.

    Raises:
        ConfigurationError: the state is of another version or mode, or does not fit the model.
    """
    checkpoint.require_version(state)
    if state.get("mode") != _MODE:
        raise ConfigurationError(
            "the state is not one of mode='local': it holds residuals of gradients, this optimizer keeps "
            "those of weights. Start without it, or in the mode that it was saved in."
        )
    number = saved.count(state, "rounds")
    layers: Mapping[str, Any] = {}
    if residuals:
        factor = rounds.messages.size / max(saved.count(state, "size"), 1)
        layers = checkpoint.owing_as_much(saved.mapping(state, "layers"), factor)
    names = matching([*layers], rounds.layers)
    loaded: dict[str, PseudoGradient] = {}
    for name, present in rounds.layers.items():
        loaded[name] = rounds.new_layer(name, present.parameter)
    for name, layer in layers.items():
        if name not in names:
            raise ConfigurationError(
                f"the state holds a residual of '{name}', which this optimizer does not have; is it of "
                "another model?"
            )
        loaded[names[name]].compressor.load_state_dict(layer)
    return lambda: rounds.replace(loaded, number)


@dataclass(frozen=True, slots=True)
class LocalMemory:
    """What an optimizer in mode "local" remembers; see `gradsieve_hvd.optimizers.Memory`."""

    rounds: LocalRounds

    @property
    def messages(self) -> Messages:
        """Among the ranks."""
        return self.rounds.messages

    def state(self) -> dict[str, Any]:
        """See `state_of`."""
        return state_of(self.rounds)

    def prepare(self, state: Mapping[str, Any], residuals: bool) -> Callable[[], None]:
        """See `prepare`."""
        return prepare(self.rounds, state, residuals)

    def owed(self) -> float:
        """Return the L2 norm of all that waits in this rank's residuals."""
        return self.rounds.waiting()
