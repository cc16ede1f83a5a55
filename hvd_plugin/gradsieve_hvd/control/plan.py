"""What the operator wants of a running training, as ranks read it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradsieve.density import is_count
from gradsieve.errors import ConfigurationError
from gradsieve.policies import DensityPlan
from gradsieve_hvd.control import contract

MODES: Mapping[str, str] = {
    "Synchronous": "synchronous",
    "Balanced": "balanced",
    "Local": "local",
    "BoundedStaleness": "ssp",
    "DynamicBoundedStaleness": "dssp",
    "Asynchronous": "asp",
    "Adaptive": "dasp",
}
"""Parallel modes as the operator names them, and as `gradsieve_hvd.DistributedOptimizer` does."""

_MOST_LOCAL_STEPS = _MOST_STALENESS = 1000
_BOUNDED = ("BoundedStaleness", "DynamicBoundedStaleness")
_DENSITIES = {"densityPermille": "density", "minDensityPermille": "lowest", "maxDensityPermille": "highest"}


def has_coordinator() -> bool:
    """Whether this process belongs to a job with a coordinator, which may have a plan for it."""
    return bool(os.environ.get(contract.COORDINATOR) and os.environ.get(contract.TLS_DIRECTORY))


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that makes sense.

    generation: grows with every change, 0 is no plan. fields: as they came. mode: in which ranks shall train,
    a value of `MODES`; None leaves it to the program. local_steps: for mode "local"; None leaves it.
    staleness_bound: for modes "ssp" and "dssp"; None for the usual one.
    """

    generation: int
    densities: DensityPlan
    fields: Mapping[str, Any]
    mode: str | None = None
    local_steps: int | None = None
    staleness_bound: int | None = None

    @classmethod
    def read(cls, content: object) -> Plan:
        """Return the plan in a JSON object. Fields that ranks have no use for are ignored.

        Raises:
            ConfigurationError: a field has a value that is not allowed, or two contradict each other.
        """
        if not isinstance(content, dict) or not is_count(content.get("generation"), 0):
            raise ConfigurationError("it must be a JSON object with a generation of 0 or more")
        known = {name: content[name] for name in _DENSITIES if content.get(name) is not None}
        for name, value in known.items():
            if not is_count(value, 1) or value > 1000:
                raise ConfigurationError(f"{name} must be a whole number from 1 to 1000, not {value!r}")
        mode, steps = content.get("mode"), content.get("localSteps")
        if mode is not None and (not isinstance(mode, str) or mode not in MODES):
            raise ConfigurationError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
        if steps is not None and (mode != "Local" or not is_count(steps, 1) or steps > _MOST_LOCAL_STEPS):
            raise ConfigurationError(
                f"localSteps must be a whole number from 1 to {_MOST_LOCAL_STEPS}, for mode Local: {steps!r}"
            )
        bound = content.get("stalenessBound")
        if bound is not None and (mode not in _BOUNDED or not is_count(bound, 1) or bound > _MOST_STALENESS):
            raise ConfigurationError(
                f"stalenessBound must be a whole number from 1 to {_MOST_STALENESS}, for modes "
                f"{' and '.join(_BOUNDED)}: {bound!r}"
            )
        densities = DensityPlan(**{_DENSITIES[name]: value / 1000 for name, value in known.items()})
        own = ("mode", "localSteps", "stalenessBound")
        known |= {name: content[name] for name in own if content.get(name) is not None}
        fields = {"generation": content["generation"], **known}
        ours = None if mode is None else MODES[mode]
        return cls(content["generation"], densities, fields, ours, steps, bound)

    def __str__(self) -> str:
        wanted = ", ".join(f"{name} {value}" for name, value in self.fields.items() if name != "generation")
        return f"plan {self.generation} ({wanted or 'densities as configured'})"


NO_PLAN = Plan(0, DensityPlan(), {"generation": 0})
