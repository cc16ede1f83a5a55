"""What is compared: every mode as users ask for it, and DASP with batches of one size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gradsieve_hvd.optimizer.modes import MODES
from gradsieve_hvd.optimizer.served import SERVED

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

ANSWERS_AS: Mapping[str, str] = MappingProxyType({mode: mode for mode in SERVED} | {"dasp": "dasp-equal"})
"""By mode with a parameter server, the contender that shows what a push and its answer take in it: where a
version is made of one push, another time than where one is made of many; with batches of one size, as they
are the simulation's unit.
"""
