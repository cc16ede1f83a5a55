"""What policies that wrap another one have in common: they pass on all that they do not change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradsieve.policies.base import LayerPolicy, Policy


@dataclass(slots=True)
class WrappingPolicy:
    """A policy around ``inner``, whose state is its own; see :class:`gradsieve.policies.base.Policy`."""

    inner: Policy

    @property
    def times_exchanges(self) -> bool:
        """As the inner policy."""
        return self.inner.times_exchanges

    def observe_exchange(self, seconds: float, size: int) -> None:
        """Tell the inner policy."""
        self.inner.observe_exchange(seconds, size)

    def commit(self) -> None:
        """Tell the inner policy."""
        self.inner.commit()

    def rollback(self) -> None:
        """Tell the inner policy."""
        self.inner.rollback()

    def state_dict(self) -> dict[str, Any]:
        """Return the inner policy's state."""
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hand the state to the inner policy."""
        self.inner.load_state_dict(state)


@dataclass(slots=True)
class WrappingLayer:
    """A layer part around ``inner``; see :class:`gradsieve.policies.base.LayerPolicy`."""

    inner: LayerPolicy

    def commit(self) -> None:
        """Tell the inner part."""
        self.inner.commit()

    def rollback(self) -> None:
        """Tell the inner part."""
        self.inner.rollback()

    def state_dict(self) -> dict[str, Any]:
        """Return the inner part's state."""
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hand the state to the inner part."""
        self.inner.load_state_dict(state)
