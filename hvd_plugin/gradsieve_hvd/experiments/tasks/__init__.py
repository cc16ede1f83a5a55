"""What the demo trains: two models on data that ships inside packages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .base import DealtTask, Task
from .charlm import SMALL, CharacterModel
from .digits import Digits

TASKS: dict[str, Callable[[], DealtTask]] = {
    "digits": Digits,
    "charlm": CharacterModel,
    "charlm-small": partial(CharacterModel, SMALL),
}

__all__ = ["TASKS", "DealtTask", "Task"]
