"""The policy of a tensor that is compressed by itself, outside any optimizer."""

from __future__ import annotations

from typing import Any

from gradsieve.errors import ConfigurationError
from gradsieve.policies.base import Decision, Outcome, Policy
from gradsieve.policies.state import require_fields


class SoleLayer:
    """A policy whose only layer this is: it ends the policy's steps together with the layer's."""

    def __init__(self, policy: Policy, name: str, elements: int) -> None:
        self._policy = policy
        self._layer = policy.layer(name, elements)
        self._open = False

    def decide(self, step: int) -> Decision:
        """See :class:`gradsieve.policies.base.LayerPolicy`."""
        self._open = True
        return self._layer.decide(step)

    def observe(self, outcome: Outcome) -> None:
        """Tell the layer part."""
        self._layer.observe(outcome)

    def commit(self) -> None:
        """Tell the layer part, then the policy; once per step."""
        self._layer.commit()
        if self._open:
            self._policy.commit()
        self._open = False

    def rollback(self) -> None:
        """Tell both."""
        self._layer.rollback()
        self._policy.rollback()
        self._open = False

    def state_dict(self) -> dict[str, Any]:
        """Return the states of both."""
        return {"layer": self._layer.state_dict(), "model": self._policy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the states of both; raises ConfigurationError, changing nothing, if one does not fit."""
        require_fields(state, "layer", "model")
        before = self._policy.state_dict()
        self._policy.load_state_dict(state["model"])
        try:
            self._layer.load_state_dict(state["layer"])
        except ConfigurationError:
            self._policy.load_state_dict(before)
            raise
