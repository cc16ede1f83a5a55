"""Reading saved states of policies field by field, so that a foreign one is refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gradsieve.density import is_count, is_fraction, is_number
from gradsieve.errors import ConfigurationError


def require_fields(state: Mapping[str, Any], *fields: str) -> None:
    """Raise ConfigurationError unless ``state`` has exactly these fields."""
    for field in fields:
        if field not in state:
            raise _refused(field, "missing", "a state of the same policy")
    for field in state:
        if field not in fields:
            raise _refused(field, "found", "a state of the same policy, which has no such field")


def count(state: Mapping[str, Any], field: str) -> int:
    """Return an integer of at least 0."""
    value = state[field]
    if not is_count(value, 0):
        raise _refused(field, repr(value), "an integer of at least 0")
    return int(value)


def fraction(state: Mapping[str, Any], field: str) -> float:
    """Return a number in (0, 1]."""
    value = state[field]
    if not is_fraction(value):
        raise _refused(field, repr(value), "a number in (0, 1]")
    return float(value)


def number_or_none(state: Mapping[str, Any], field: str) -> float | None:
    """Return a finite number of at least 0, or None."""
    value = state[field]
    if value is None:
        return None
    if not is_number(value) or not 0 <= value < math.inf:
        raise _refused(field, repr(value), "a finite number of at least 0, or None")
    return float(value)


def numbers(state: Mapping[str, Any], field: str) -> list[float]:
    """Return a list of finite numbers."""
    values = state[field]
    if not _are_numbers(values):
        raise _refused(field, type(values).__name__, "a list of finite numbers")
    return [float(value) for value in values]


def lists_of_numbers(state: Mapping[str, Any], field: str) -> list[list[float]]:
    """Return a list of such lists."""
    lists = state[field]
    if not (isinstance(lists, list) and all(map(_are_numbers, lists))):
        raise _refused(field, type(lists).__name__, "a list of lists of finite numbers")
    return [[float(value) for value in values] for values in lists]


def _are_numbers(values: object) -> bool:
    return isinstance(values, list) and all(is_number(v) and math.isfinite(v) for v in values)


def _refused(field: str, found: str, expected: str) -> ConfigurationError:
    return ConfigurationError(f"policy state, field '{field}': {found}, expected {expected}")
