"""Saving and loading what a training remembers that changes between modes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gradsieve.errors import ConfigurationError
from gradsieve.policies import state as saved
from gradsieve_hvd.engine import checkpoint
from gradsieve_hvd.optimizer.local import checkpoint as local_checkpoint
from gradsieve_hvd.transport.messages import Messages

from .mode_agreement import CHANGEABLE
from .mode_changes import ModeChanges


@dataclass(frozen=True, slots=True)
class AutoMemory:
    """What an optimizer in mode "auto" remembers; see `gradsieve_hvd.optimizers.Memory`.

    "auto": mode, steps of a local round, rounds so far; the same on all ranks. "local": this rank's residuals
    of weights. The rest: what gradients left behind, also while steps are local.
    """

    changes: ModeChanges

    @property
    def messages(self) -> Messages:
        """Among the ranks."""
        return self.changes.synchronizer.reducer.messages

    def state(self) -> dict[str, Any]:
        """Return it as of the last step that all ranks have in common.

        Raises:
            ConfigurationError: within a round of local steps, or a parameter server has the optimizer's
                state.
        """
        changes = self.changes
        changes.require_state_here("saving its state")
        rounds = changes.rounds
        local = {} if rounds is None else local_checkpoint.state_of(rounds)
        told = {
            "mode": changes.present,
            "local_steps": changes.rules.steps,
            "staleness_bound": changes.staleness_bound or 0,
            "rounds": 0 if rounds is None else rounds.rounds,
            "other_steps": changes.synchronizer.agreement.other_steps,
        }
        return {**checkpoint.state_of(changes.synchronizer.reducer), "auto": told, "local": local}

    def prepare(self, state: Mapping[str, Any], residuals: bool) -> Callable[[], None]:
        """Check a state and return what takes it over; one of mode "synchronous" is one of that mode.

        Raises:
            ConfigurationError: it is of another version, or does not fit the model or what was set.
        """
        changes = self.changes
        take_over_gradients = checkpoint.prepare(changes.synchronizer.reducer, state, residuals)
        told = saved.mapping(state, "auto") if "auto" in state else {}
        mode = told.get("mode", "synchronous")
        if mode not in CHANGEABLE:
            raise ConfigurationError(
                f"the state was saved in mode {mode!r}; known are {', '.join(CHANGEABLE)}"
            )
        if why := changes.why_not(mode):
            raise ConfigurationError(f"the state was saved in mode {mode!r}: {why}")
        steps = saved.count(told, "local_steps") if told else changes.rules.steps
        bound = saved.count(told, "staleness_bound") if "staleness_bound" in told else 0
        others = saved.count(told, "other_steps") if told else 0
        rounds = None
        if mode == "local":
            rounds = changes.new_rounds()
            rounds.replace(rounds.layers, saved.count(told, "rounds"))
            if residuals:
                local_checkpoint.prepare(rounds, saved.mapping(state, "local"), True)()

        def take_over() -> None:
            take_over_gradients()
            changes.synchronizer.agreement.other_steps = others
            changes.go_on(mode, rounds, max(steps, 1), bound or None)

        return take_over

    def owed(self) -> float:
        """Return the L2 norm of all that waits in this rank's residuals of gradients.

        Those of weights, in mode "local", are of another unit; they count where gradients owe nothing.
        """
        changes = self.changes
        states = changes.synchronizer.reducer.states.values()
        gradients = (each.compressor.waiting() for each in states if each.compressor is not None)
        return math.hypot(*gradients) or (0.0 if changes.rounds is None else changes.rounds.waiting())
