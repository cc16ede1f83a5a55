"""What a policy decides, what it is told, and when.

A selector knows *which* entries of a tensor to send once it knows how many; a policy says how many. There is
one policy per optimizer; it gives every layer a part of its own::

    layer part   decide(step) ─► selection ─► observe(outcome) ─► commit | rollback
    policy       observe_exchange(seconds, size) ───────────────► commit | rollback     after all layer parts

Between ``commit`` calls a policy may change nothing that ``state_dict`` shows: a step that is rolled back and
done again gets the same decisions. Ranks may decide differently (payloads say what they hold), but what they
decide may only ever be a number of entries, never a format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with one layer in one step.

    density: kept / all, in (0, 1].
    refresh_threshold: select without the threshold of the last step.
    measure: report the kept-energy gain afterwards; it costs a pass over the layer.
    """

    density: float
    refresh_threshold: bool = False
    measure: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a decision.

    elements: size of the layer.
    kept: entries selected.
    threshold: smallest magnitude that the selector let pass, in unscaled gradient units.
    gain: norm of what was kept / norm of all, in [0, 1]; None if it was not asked for or all is zero.
    """

    elements: int
    kept: int
    threshold: float
    gain: float | None = None


class LayerPolicy(Protocol):
    """One layer's part of a policy. ``commit`` and ``rollback`` may be called any number of times."""

    def decide(self, step: int) -> Decision:
        """Return what to do in an optimizer step, counted from 0."""
        ...

    def observe(self, outcome: Outcome) -> None:
        """Note what was selected, pending until ``commit``; not called for a refused gradient."""
        ...

    def commit(self) -> None:
        """The step was taken."""
        ...

    def rollback(self) -> None:
        """The step was not taken: forget what was noted since the last commit."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the committed state: numbers, strings, lists and tensors only."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state; raises ConfigurationError, changing nothing, if it is of another policy."""
        ...


class Policy(Protocol):
    """How much of every layer is sent; one per optimizer and rank.

    times_exchanges: whether it wants ``observe_exchange``, which whoever exchanges pays for.
    """

    @property
    def times_exchanges(self) -> bool:
        """See the class."""
        ...

    def layer(self, name: str, elements: int) -> LayerPolicy:
        """Return the part of a layer of that size, as of before its first step."""
        ...

    def observe_exchange(self, seconds: float, size: int) -> None:
        """Note that it took ``seconds`` until ``size`` bytes, those of all ranks together, had arrived here.

        ``size=0`` reports what an exchange of nothing takes. Pending until the next ``commit``, whichever
        step that ends.
        """
        ...

    def commit(self) -> None:
        """The step was taken, and every layer part has been told so."""
        ...

    def rollback(self) -> None:
        """The step was not taken."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the committed state that belongs to no single layer."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state; raises ConfigurationError, changing nothing, if it is of another policy."""
        ...
