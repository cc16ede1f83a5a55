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

_DENSITIES = {"densityPermille": "density", "minDensityPermille": "lowest", "maxDensityPermille": "highest"}


def has_coordinator() -> bool:
    """Whether this process belongs to a job with a coordinator, which may have a plan for it."""
    return bool(os.environ.get(contract.COORDINATOR) and os.environ.get(contract.TLS_DIRECTORY))


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that makes sense. generation: grows with every change, 0 is no plan. fields: as they came."""

    generation: int
    densities: DensityPlan
    fields: Mapping[str, Any]

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
        densities = DensityPlan(**{_DENSITIES[name]: value / 1000 for name, value in known.items()})
        return cls(content["generation"], densities, {"generation": content["generation"], **known})

    def __str__(self) -> str:
        wanted = ", ".join(f"{name} {value}" for name, value in self.fields.items() if name != "generation")
        return f"plan {self.generation} ({wanted or 'densities as configured'})"


NO_PLAN = Plan(0, DensityPlan(), {"generation": 0})
