"""Reading a JSON object field by field, with errors that name the field."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gradsieve_operator.errors import SpecError

Word = TypeVar("Word", bound=str)


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of the API and where it lies.

    Every reader returns the field's value, or ``default`` where the field is absent or null (the API server
    takes both for the same), and raises SpecError for a value that is not allowed.

    Attributes:
        values: the object as the API server returns it; not changed.
        path: its own path, as in ``spec.runPolicy``.
    """

    values: Mapping[str, Any]
    path: str

    @classmethod
    def of(cls, value: object, path: str) -> Fields:
        """Return a reader of ``value``.

        Raises:
            SpecError: it is no object.
        """
        if not isinstance(value, Mapping):
            raise SpecError(path, f"is {_shown(value)}; it must be an object")
        return cls(value, path)

    def at(self, name: str) -> str:
        """Return the path of a field."""
        return f"{self.path}.{name}"

    def error(self, name: str, problem: str) -> SpecError:
        """Return the error for a field."""
        return SpecError(self.at(name), problem)

    def has(self, name: str) -> bool:
        """Return whether the field is there."""
        return self.values.get(name) is not None

    def object(self, name: str) -> Fields:
        """Return a reader of the object in a field, an empty one where it is absent."""
        return Fields.of(self.values.get(name) if self.has(name) else {}, self.at(name))

    def items(self, name: str, most: int) -> list[Any]:
        """Return the list in a field, empty where it is absent."""
        found = self.values.get(name) if self.has(name) else []
        if not isinstance(found, Sequence) or isinstance(found, str):
            raise self.error(name, f"is {_shown(found)}; it must be a list")
        if len(found) > most:
            raise self.error(name, f"has {len(found)} items; at most {most} are allowed")
        return list(found)

    def flag(self, name: str, default: bool) -> bool:
        """Return a truth value."""
        found = self.values.get(name) if self.has(name) else default
        if not isinstance(found, bool):
            raise self.error(name, f"is {_shown(found)}; it must be true or false")
        return found

    def number(self, name: str, least: int, most: int) -> int | None:
        """Return a whole number within the limits, None where the field is absent."""
        found = self.values.get(name)
        if found is None:
            return None
        if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
            raise self.error(name, f"is {_shown(found)}; it must be a whole number from {least} to {most}")
        return found

    def number_or(self, name: str, default: int, least: int, most: int) -> int:
        """Return a whole number within the limits."""
        found = self.number(name, least, most)
        return default if found is None else found

    def word(self, name: str, words: tuple[Word, ...]) -> Word | None:
        """Return one of ``words``, None where the field is absent."""
        found = self.values.get(name)
        if found is None:
            return None
        for word in words:
            if found == word:
                return word
        raise self.error(name, f"is {_shown(found)}; it must be one of {', '.join(words)}")

    def word_or(self, name: str, default: Word, words: tuple[Word, ...]) -> Word:
        """Return one of ``words``."""
        return self.word(name, words) or default

    def name(self, name: str, pattern: re.Pattern[str], longest: int) -> str | None:
        """Return a name of that form, None where the field is absent."""
        found = self.values.get(name)
        if found is None:
            return None
        if not isinstance(found, str) or len(found) > longest or not pattern.fullmatch(found):
            allowed = f"it must match {pattern.pattern} and have at most {longest} characters"
            raise self.error(name, f"is {_shown(found)}; {allowed}")
        return found

    def missing(self, name: str, what: str) -> SpecError:
        """Return the error for a field that is not there; ``what`` it would say."""
        return self.error(name, f"is missing; it says {what}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
