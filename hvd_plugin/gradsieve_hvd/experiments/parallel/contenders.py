"""What is compared: every mode as users ask for it, and DASP with batches of one size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gradsieve_hvd.optimizer.modes import MODES

LOCAL_STEPS = 15


@dataclass(frozen=True, slots=True)
class Contender:
    """An optimizer's mode, and settings of it."""

    mode: str
    settings: Mapping[str, Any] = field(default_factory=dict)


CONTENDERS: Mapping[str, Contender] = MappingProxyType(
    {mode: Contender(mode) for mode in MODES}
    | {
        "local": Contender("local", {"local_steps": LOCAL_STEPS}),
        "dasp-equal": Contender("dasp", {"equal_batches": True}),
    }
)
"""By name."""

SIMULATED_AS: Mapping[str, str] = MappingProxyType({"dasp": "dasp-shares", "dasp-equal": "dasp"})
"""What `gradsieve simulate modes` calls contenders that have another name there."""
