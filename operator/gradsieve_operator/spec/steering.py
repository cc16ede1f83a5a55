"""How ranks work together, and whether the operator may change that by what it measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradsieve_operator.spec.fields import Fields
from gradsieve_operator.spec.values import (
    BOUNDED_MODES,
    MAX_HYSTERESIS,
    MAX_INTERVAL,
    MAX_LOCAL_STEPS,
    MAX_SAMPLES,
    MAX_SECONDS,
    MAX_STALENESS,
    MIN_INTERVAL,
    MIN_SAMPLES,
    MODES,
    Mode,
)

_BOUNDS: dict[str, tuple[Mode, ...]] = {"stalenessBound": BOUNDED_MODES, "localSteps": ("Local",)}
"""Field -> modes that it is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """When gradients become weights. May change while the job runs.

    mode: ``"Auto"``: the operator chooses by what it measures, and begins with ``"Synchronous"``.
    staleness_bound: how many iterations a worker may lead the slowest, for the bounded modes; None: theirs.
    local_steps: between two exchanges, for ``"Local"``; None: its own.
    """

    mode: Mode = "Synchronous"
    staleness_bound: int | None = None
    local_steps: int | None = None

    @classmethod
    def parse(cls, source: Fields) -> Parallelism:
        """Read ``spec.parallelism``.

        Raises:
            SpecError: a value is not allowed, or a bound is there without a mode that it is for.
        """
        mode = source.word("mode", MODES)
        for name, modes in _BOUNDS.items():
            if source.has(name) and mode not in modes:
                raise source.error(name, f"is for mode {' or '.join(modes)}; remove it, or name that mode")
        return cls(
            mode=mode or "Synchronous",
            staleness_bound=source.number("stalenessBound", 1, MAX_STALENESS),
            local_steps=source.number("localSteps", 1, MAX_LOCAL_STEPS),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptation:
    """Whether the operator changes a job's plan by what it measures, and how carefully. Times in seconds.

    enabled: whether it does.
    interval: for how long a change must look worth it before it is made.
    cooldown: from one change to the next at the earliest; doubled each time that a change is undone.
    hysteresis_percent: how much shorter the time to a loss must become to be worth a change.
    min_samples: of the plan in force, before anything is concluded from them; one comes every two seconds.
    """

    enabled: bool = False
    interval: int = 30
    cooldown: int = 120
    hysteresis_percent: int = 10
    min_samples: int = 10

    @classmethod
    def parse(cls, source: Fields) -> Adaptation:
        """Read ``spec.adaptation``.

        Raises:
            SpecError: a value is not allowed.
        """
        return cls(
            enabled=source.flag("enabled", default=False),
            interval=source.number_or("intervalSeconds", 30, MIN_INTERVAL, MAX_INTERVAL),
            cooldown=source.number_or("cooldownSeconds", 120, MIN_INTERVAL, MAX_SECONDS),
            hysteresis_percent=source.number_or("hysteresisPercent", 10, 1, MAX_HYSTERESIS),
            min_samples=source.number_or("minSamples", 10, MIN_SAMPLES, MAX_SAMPLES),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Steering:
    """What the operator steers a job by, once job and policy are laid over one another."""

    parallelism: Parallelism = Parallelism()
    adaptation: Adaptation = Adaptation()


@dataclass(frozen=True, slots=True, kw_only=True)
class SteeringFields:
    """The fields of ``spec.parallelism`` and ``spec.adaptation`` that a job or a policy gives itself.

    parallelism, adaptation: as the API spells them, without those that are null.
    adapts: whether ``adaptation`` is there at all, and be it empty.
    """

    parallelism: Mapping[str, Any] = field(default_factory=dict)
    adaptation: Mapping[str, Any] = field(default_factory=dict)
    adapts: bool = False

    @classmethod
    def parse(cls, spec: Fields) -> SteeringFields:
        """Read them from the ``spec`` of a job or a policy.

        Raises:
            SpecError: a value is not allowed, or two contradict one another.
        """
        parallelism, adaptation = spec.object("parallelism"), spec.object("adaptation")
        Parallelism.parse(parallelism)
        Adaptation.parse(adaptation)
        return cls(
            parallelism=_given(parallelism.values),
            adaptation=_given(adaptation.values),
            adapts=spec.has("adaptation"),
        )

    def over(self, policy: SteeringFields | None) -> Steering:
        """Return what holds with what is left open taken from ``policy``, field by field.

        A bound of the policy's goes where the job names a mode that the bound is not for.
        """
        shared = policy or SteeringFields()
        parallelism = {**shared.parallelism, **self.parallelism}
        mode = parallelism.get("mode")
        kept = {name: value for name, value in parallelism.items() if mode in _BOUNDS.get(name, (mode,))}
        return Steering(
            parallelism=Parallelism.parse(Fields(kept, "spec.parallelism")),
            adaptation=Adaptation.parse(Fields({**shared.adaptation, **self.adaptation}, "spec.adaptation")),
        )


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
