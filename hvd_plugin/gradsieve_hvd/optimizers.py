"""What users ask of a distributed optimizer, and give it back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gradsieve.errors import ConfigurationError

from .ddp.state import DdpState
from .dropin.compressor import adapter_of
from .engine import checkpoint
from .engine.reducer import Reducer
from .engine.statistics import StepStatistics
from .optimizer.auto_mode import AutoMemory, ModeChanges
from .optimizer.local import LocalMemory, LocalRounds
from .optimizer.served import ServedTraining
from .optimizer.synchronizer import Synchronizer
from .transport.messages import Messages


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

    Residuals are in unscaled gradient units; with ``mode="local"`` they are of weights. The tensors are
    copies.

    Raises:
        ConfigurationError: the optimizer has no gradsieve compressor, or it is within a round of local steps.
    """
    return memory_of(optimizer).state()


def load_state_dict(optimizer: Any, state: dict[str, Any]) -> None:
    """Load what `state_dict` returned, before the first or between two steps.

    State that another rank saved, or this rank in a job of another size, is not this rank's debt: residuals,
    and with them the policy, start anew then, with a warning. What is the same on all ranks is taken over in
    any case: the step count (the clock of density warm-up) and the velocities of dense tensors.

    Raises:
        ConfigurationError: the state is of another version, or does not fit the model or the compressor;
            nothing was changed.
    """
    memory = memory_of(optimizer)
    memory.prepare(state, checkpoint.is_of_this_rank(memory.messages, state))()


def reducer_of(optimizer: Any) -> Reducer:
    """Return what gradsieve keeps for a distributed optimizer.

    Raises:
        ConfigurationError: the optimizer has no gradsieve compressor.
    """
    reducer = find_reducer(optimizer)
    if reducer is None and find_rounds(optimizer) is not None:
        raise ConfigurationError("mode='local' exchanges no gradients; optimizer.stats() tells of its rounds")
    if reducer is None:
        raise _not_ours()
    return reducer


def restart(optimizer: Any) -> None:
    """Have an optimizer that compresses go on among ranks that may be others than before; all call it."""
    synchronizer, rounds = getattr(optimizer, "synchronizer", None), find_rounds(optimizer)
    reducer, changes = find_reducer(optimizer), find_changes(optimizer)
    if changes is not None:
        changes.restart()
    elif rounds is not None:
        rounds.restart()
    elif isinstance(synchronizer, Synchronizer):
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


def find_rounds(optimizer: Any) -> LocalRounds | None:
    """Return what gradsieve keeps for an optimizer in mode "local"; None if it is not one."""
    rounds = getattr(optimizer, "local_rounds", None)
    return rounds if isinstance(rounds, LocalRounds) else None


def find_changes(optimizer: Any) -> ModeChanges | None:
    """Return what changes an optimizer's mode; None if nothing does."""
    changes = getattr(optimizer, "mode_changes", None)
    return changes if isinstance(changes, ModeChanges) else None


def is_served(optimizer: Any) -> bool:
    """Whether a parameter server has the weights and the optimizer's state, from first step to last."""
    training = getattr(optimizer, "training", None)
    return isinstance(training, ServedTraining) and find_changes(optimizer) is None


class Memory(Protocol):
    """What an optimizer remembers beside the user's own state, whatever its mode.

    messages: among the ranks.
    """

    @property
    def messages(self) -> Messages:
        """See above."""
        ...

    def state(self) -> dict[str, Any]:
        """Return it as of the last completed step, for a file per rank."""
        ...

    def prepare(self, state: Mapping[str, Any], residuals: bool) -> Callable[[], None]:
        """Check a state and return what takes it over, with or without residuals."""
        ...

    def owed(self) -> float:
        """Return the L2 norm of all that waits in this rank's residuals."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class ReducerMemory:
    """`Memory` of an optimizer that exchanges gradients."""

    reducer: Reducer

    @property
    def messages(self) -> Messages:
        """See `Memory`."""
        return self.reducer.messages

    def state(self) -> dict[str, Any]:
        """See `checkpoint.state_of`."""
        return checkpoint.state_of(self.reducer)

    def prepare(self, state: Mapping[str, Any], residuals: bool) -> Callable[[], None]:
        """See `checkpoint.prepare`.

        Raises:
            ConfigurationError: also where local steps have left something, which this optimizer would lose.
        """
        if isinstance(state, Mapping) and state.get("local"):
            raise ConfigurationError(
                "the state was saved by mode='auto' during local steps and holds residuals of weights, which "
                "this optimizer does not keep: load it with mode='auto'"
            )
        return checkpoint.prepare(self.reducer, state, residuals)

    def owed(self) -> float:
        """See `Memory`."""
        states = self.reducer.states.values()
        return math.hypot(*(each.compressor.waiting() for each in states if each.compressor is not None))


def find_memory(optimizer: Any) -> Memory | None:
    """Return what an optimizer remembers; None if it does not compress."""
    rounds, reducer, changes = find_rounds(optimizer), find_reducer(optimizer), find_changes(optimizer)
    if changes is not None:
        return AutoMemory(changes)
    if rounds is not None:
        return LocalMemory(rounds)
    return None if reducer is None else ReducerMemory(reducer)


def memory_of(optimizer: Any) -> Memory:
    """Return what an optimizer remembers.

    Raises:
        ConfigurationError: it does not compress.
    """
    memory = find_memory(optimizer)
    if memory is None:
        raise _not_ours()
    return memory


def _not_ours() -> ConfigurationError:
    return ConfigurationError(
        "this optimizer is no hvd.DistributedOptimizer with a gradsieve compressor, nor a "
        "gradsieve_hvd.DistributedOptimizer, nor a gradsieve_hvd.DdpState"
    )
