"""Reading JSON that comes from outside: every field is checked, and what does not fit is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from gradsieve.errors import LaunchError

MOST_BYTES = 1 << 20
"""Size of the largest message or request body that is read."""

OUT_OF_DATE = 409
"""Status of what is refused because it comes too late, or out of turn."""

_MOST_TEXT = 4096


class Refused(LaunchError):
    """A message or request was not accepted, and nothing was changed.

    Attributes:
        status: HTTP status that says why: 400 malformed, 403 not allowed, 409 out of date or out of turn.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Fields:
    """One JSON object from outside; each method reads one field and refuses what does not fit.

    Args:
        value: what was parsed.
        where: what the object is, for messages.

    Raises:
        Refused: ``value`` is no object; likewise every method if its field is missing or does not fit.
    """

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise Refused(f"{where}: expected a JSON object, got {type(value).__name__}")
        self._values: Mapping[str, Any] = value
        self._where = where

    @classmethod
    def parse(cls, text: str | bytes, where: str) -> Fields:
        """The object that ``text`` holds as JSON."""
        if len(text) > MOST_BYTES:
            raise Refused(f"{where}: {len(text)} bytes, at most {MOST_BYTES} are accepted", 413)
        try:
            return cls(json.loads(text, parse_constant=_refuse_constant), where)
        except (ValueError, RecursionError) as error:
            raise Refused(f"{where}: no valid JSON ({error})") from error

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def names(self) -> list[str]:
        """Names of all fields."""
        return list(self._values)

    def refuse(self, name: str, expected: str) -> NoReturn:
        """Refuse the object because of field ``name``.

        Raises:
            Refused: always.
        """
        raise Refused(f"{self._where}: {name} must be {expected}, got {_shown(self._values.get(name))}")

    def text(self, name: str, *, most: int = _MOST_TEXT, empty: bool = False) -> str:
        """A string without NUL of 1 (or 0, if it may be ``empty``) to ``most`` characters."""
        value = self._values.get(name)
        if not _is_text(value, most) or not (value or empty):
            self.refuse(name, f"a string of {0 if empty else 1} to {most} characters")
        return str(value)

    def integer(self, name: str, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        value = self._values.get(name)
        if type(value) is not int or not low <= value <= high:
            self.refuse(name, f"a whole number from {low} to {high}")
        return int(value)

    def number(self, name: str, low: float = 0.0, high: float = 1e18) -> float:
        """A finite number from ``low`` to ``high``, both included."""
        value: Any = self._values.get(name)
        if type(value) not in (int, float) or not low <= value <= high or not math.isfinite(value):
            self.refuse(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def texts(self, name: str, most: int, *, least: int = 0) -> tuple[str, ...]:
        """A list of ``least`` to ``most`` strings; they may be empty."""
        value = self._values.get(name)
        if not isinstance(value, list) or not least <= len(value) <= most:
            self.refuse(name, f"a list of {least} to {most} strings")
        if not all(_is_text(item, MOST_BYTES) for item in value):
            self.refuse(name, "a list of strings")
        return tuple(value)

    def integers(self, name: str, most: int, high: int) -> tuple[int, ...]:
        """A list of at most ``most`` whole numbers from 0 to ``high``."""
        value = self._values.get(name)
        if not isinstance(value, list) or len(value) > most:
            self.refuse(name, f"a list of at most {most} whole numbers")
        if not all(type(item) is int and 0 <= item <= high for item in value):
            self.refuse(name, f"a list of whole numbers from 0 to {high}")
        return tuple(value)

    def objects(self, name: str, most: int, *, least: int = 0) -> list[Fields]:
        """A list of ``least`` to ``most`` objects."""
        value = self._values.get(name)
        if not isinstance(value, list) or not least <= len(value) <= most:
            self.refuse(name, f"a list of {least} to {most} objects")
        return [Fields(item, f"{self._where}: {name}[{place}]") for place, item in enumerate(value)]

    def mapping(self, name: str, most: int) -> dict[str, str]:
        """An object of at most ``most`` strings that can be environment variables."""
        value = self._values.get(name)
        if not isinstance(value, dict) or len(value) > most:
            self.refuse(name, f"an object of at most {most} strings")
        if not all(key and "=" not in key and "\0" not in key for key in value):
            self.refuse(name, "an object whose names are those of environment variables")
        if not all(_is_text(item, MOST_BYTES) for item in value.values()):
            self.refuse(name, "an object of strings")
        return dict(value)

    def scalars(self, most: int) -> dict[str, str | int | bool | None]:
        """All fields, each a short string, a whole number, true, false or null."""
        if len(self._values) > most:
            raise Refused(f"{self._where}: {len(self._values)} fields, at most {most} are accepted")
        for name, value in self._values.items():
            if not (value is None or type(value) in (int, bool) or _is_text(value, _MOST_TEXT)):
                self.refuse(name, "a string, a whole number, true, false or null")
        return dict(self._values)


def _is_text(value: object, most: int) -> bool:
    # Lone surrogates can be written in JSON, and neither in UTF-8 nor in an argument list.
    return isinstance(value, str) and len(value) <= most and "\0" not in value and _is_unicode(value)


def _is_unicode(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
