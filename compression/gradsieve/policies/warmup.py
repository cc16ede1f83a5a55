"""Density warm-up over any other policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gradsieve.policies.base import Decision, LayerPolicy, Outcome, Policy
from gradsieve.schedule import DensityWarmup


@dataclass(slots=True)
class WarmupPolicy:
    """Starts every layer at the warm-up's density and lets it decay to whatever the inner policy decides.

    The inner policy is asked in every step, but its layer parts observe nothing while the warm-up lasts:
    energies kept at densities that they did not choose would mislead them.
    """

    inner: Policy
    warmup: DensityWarmup

    @property
    def times_exchanges(self) -> bool:
        """As the inner policy."""
        return self.inner.times_exchanges

    def layer(self, name: str, elements: int) -> LayerPolicy:
        """See :class:`gradsieve.policies.base.Policy`."""
        return _WarmupLayer(self.inner.layer(name, elements), self.warmup)

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
        """Return the inner policy's state: a warm-up's only clock is the step."""
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hand the state to the inner policy."""
        self.inner.load_state_dict(state)


@dataclass(slots=True)
class _WarmupLayer:
    inner: LayerPolicy
    warmup: DensityWarmup
    _step: int = 0

    def decide(self, step: int) -> Decision:
        self._step = step
        decision = self.inner.decide(step)
        if self._over:
            return decision
        density = max(decision.density, self.warmup.density_at(step, decision.density))
        return replace(decision, density=density, measure=False)

    def observe(self, outcome: Outcome) -> None:
        if self._over:
            self.inner.observe(outcome)

    def commit(self) -> None:
        self.inner.commit()

    def rollback(self) -> None:
        self.inner.rollback()

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)

    @property
    def _over(self) -> bool:
        return self._step >= self.warmup.steps
