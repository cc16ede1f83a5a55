"""Density warm-up over any other policy."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradsieve.policies.base import Decision, LayerPolicy, Outcome
from gradsieve.policies.wrapping import WrappingLayer, WrappingPolicy
from gradsieve.schedule import DensityWarmup


@dataclass(slots=True)
class WarmupPolicy(WrappingPolicy):
    """Starts every layer at the warm-up's density and lets it decay to whatever the inner policy decides.

    The inner policy is asked in every step, but its layer parts observe nothing while the warm-up lasts:
    energies kept at densities that they did not choose would mislead them.
    """

    warmup: DensityWarmup

    def layer(self, name: str, elements: int) -> LayerPolicy:
        """See :class:`gradsieve.policies.base.Policy`."""
        return _WarmupLayer(self.inner.layer(name, elements), self.warmup)


@dataclass(slots=True)
class _WarmupLayer(WrappingLayer):
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

    @property
    def _over(self) -> bool:
        return self._step >= self.warmup.steps
