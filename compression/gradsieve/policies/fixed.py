"""The same density for every layer: always, or as something else decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradsieve.policies.base import Decision, LayerPolicy, Outcome
from gradsieve.policies.state import require_fields


@dataclass(frozen=True, slots=True)
class UniformLayer:
    """A layer part without a state of its own: it asks for the density of the day."""

    density: Callable[[], float]

    def decide(self, step: int) -> Decision:  # noqa: ARG002
        """See :class:`gradsieve.policies.base.LayerPolicy`."""
        return Decision(self.density())

    def observe(self, outcome: Outcome) -> None:
        """Do nothing."""

    def commit(self) -> None:
        """Do nothing."""

    def rollback(self) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Accept an empty state only."""
        require_fields(state)


@dataclass(frozen=True, slots=True)
class FixedPolicy:
    """The configured density for every layer in every step (the null object among the policies)."""

    density: float

    @property
    def times_exchanges(self) -> bool:
        """No."""
        return False

    def layer(self, name: str, elements: int) -> LayerPolicy:  # noqa: ARG002
        """See :class:`gradsieve.policies.base.Policy`."""
        return UniformLayer(lambda: self.density)

    def observe_exchange(self, seconds: float, size: int) -> None:
        """Do nothing."""

    def commit(self) -> None:
        """Do nothing."""

    def rollback(self) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Accept an empty state only."""
        require_fields(state)
