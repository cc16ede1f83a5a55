"""Reading saved states field by field, so that a foreign or damaged one is refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gradsieve.density import is_count, is_fraction, is_number
from gradsieve.errors import ConfigurationError


def require_fields(state: Mapping[str, Any], *fields: str) -> None:
    """Raise ConfigurationError unless ``state`` is a mapping with exactly these fields."""
    if not isinstance(state, Mapping):
        raise ConfigurationError(f"saved state: found {type(state).__name__}, expected a dictionary")
    for field in fields:
        if field not in state:
            raise _refused(field, "missing", "a state of the same kind")
    for field in state:
        if field not in fields:
            raise _refused(field, "found", "a state of the same kind, which has no such field")


def mapping(state: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """Return a mapping whose keys are strings."""
    value = _value(state, field)
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _refused(field, type(value).__name__, "a dictionary with names as keys")
    return value


def count(state: Mapping[str, Any], field: str) -> int:
    """Return an integer of at least 0."""
    value = _value(state, field)
    if not is_count(value, 0):
        raise _refused(field, repr(value), "an integer of at least 0")
    return int(value)


def fraction(state: Mapping[str, Any], field: str) -> float:
    """Return a number in (0, 1]."""
    value = _value(state, field)
    if not is_fraction(value):
        raise _refused(field, repr(value), "a number in (0, 1]")
    return float(value)


def number_or_none(state: Mapping[str, Any], field: str) -> float | None:
    """Return a finite number of at least 0, or None."""
    value = _value(state, field)
    if value is None:
        return None
    if not is_number(value) or not 0 <= value < math.inf:
        raise _refused(field, repr(value), "a finite number of at least 0, or None")
    return float(value)


def numbers(state: Mapping[str, Any], field: str, lowest: float = -math.inf) -> list[float]:
    """Return a list of finite numbers of at least ``lowest``."""
    values = _value(state, field)
    if not _are_numbers(values) or any(value < lowest for value in values):
        least = "" if lowest == -math.inf else f" of at least {lowest:g}"
        raise _refused(field, type(values).__name__, f"a list of finite numbers{least}")
    return [float(value) for value in values]


def lists_of_numbers(state: Mapping[str, Any], field: str) -> list[list[float]]:
    """Return a list of such lists."""
    lists = _value(state, field)
    if not (isinstance(lists, list) and all(map(_are_numbers, lists))):
        raise _refused(field, type(lists).__name__, "a list of lists of finite numbers")
    return [[float(value) for value in values] for values in lists]


def _are_numbers(values: object) -> bool:
    return isinstance(values, list) and all(is_number(v) and math.isfinite(v) for v in values)


def _value(state: Mapping[str, Any], field: str) -> Any:
    if field not in state:
        raise _refused(field, "missing", "a state of the same kind")
    return state[field]


def _refused(field: str, found: str, expected: str) -> ConfigurationError:
    return ConfigurationError(f"saved state, field '{field}': {found}, expected {expected}")
