"""What the demo trains: two models on data that ships inside packages."""

from __future__ import annotations

from collections.abc import Callable

from .base import Task
from .charlm import CharacterModel
from .digits import Digits

TASKS: dict[str, Callable[[], Task]] = {"digits": Digits, "charlm": CharacterModel}

__all__ = ["TASKS", "Task"]
