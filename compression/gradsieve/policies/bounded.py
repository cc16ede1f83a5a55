"""Densities that somebody outside the training sets while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

from gradsieve.density import is_fraction
from gradsieve.errors import ConfigurationError
from gradsieve.policies.base import Decision, LayerPolicy, Outcome
from gradsieve.policies.wrapping import WrappingLayer, WrappingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class DensityPlan:
    """What is wanted of all layers; None leaves it to the policy.

    density: in place of the configured density, in (0, 1].
    lowest, highest: limits of what a policy decides, in (0, 1].

    Raises ConfigurationError if a value is out of range, or ``density`` outside of the limits.
    """

    density: float | None = None
    lowest: float | None = None
    highest: float | None = None

    def __post_init__(self) -> None:
        named = [(name, getattr(self, name)) for name in ("lowest", "density", "highest")]
        given = [(name, value) for name, value in named if value is not None]
        for name, value in given:
            if not is_fraction(value):
                raise ConfigurationError(f"DensityPlan: {name}={value!r} must be a number in (0, 1]")
        for (low, least), (high, most) in pairwise(given):
            if least > most:
                raise ConfigurationError(f"DensityPlan: {low}={least!r} must be at most {high}={most!r}")

    def scaled(self, decided: float, configured: float) -> float:
        """Return a decided density as if ``density`` had been configured instead of ``configured``.

        Exactly ``density`` for what is exactly as configured: an ulp more would be an entry more.
        """
        if self.density is None or self.density == configured:
            return decided
        return self.density if decided == configured else min(decided * (self.density / configured), 1.0)

    def limited(self, density: float) -> float:
        """Return the density within the limits."""
        return min(max(density, self.lowest or 0.0), self.highest or 1.0)


@dataclass(slots=True)
class Steering:
    """Where the plan in force is kept; whoever owns it changes it between two steps only."""

    plan: DensityPlan = field(default_factory=DensityPlan)


@dataclass(slots=True)
class BoundedPolicy(WrappingPolicy):
    """Any policy under the plan of a ``steering``; ``configured`` is the density that it was made for.

    1. The inner policy decides as always.
    2. Scale by planned / configured density: a policy that gives layers different shares keeps them.
    3. Keep within the plan's limits. A layer part whose decision was cut off there observes nothing in that
       step: an energy kept at a density that it did not choose would mislead it.

    The plan is no part of the state: who sets it sets it again.
    """

    configured: float
    steering: Steering

    def layer(self, name: str, elements: int) -> LayerPolicy:
        """See :class:`gradsieve.policies.base.Policy`."""
        return _BoundedLayer(self.inner.layer(name, elements), self.configured, self.steering)


@dataclass(slots=True)
class _BoundedLayer(WrappingLayer):
    configured: float
    steering: Steering
    _cut_off: bool = False

    def decide(self, step: int) -> Decision:
        decision, plan = self.inner.decide(step), self.steering.plan
        wanted = plan.scaled(decision.density, self.configured)
        density = plan.limited(wanted)
        self._cut_off = density != wanted
        return replace(decision, density=density, measure=decision.measure and not self._cut_off)

    def observe(self, outcome: Outcome) -> None:
        if not self._cut_off:
            self.inner.observe(outcome)
