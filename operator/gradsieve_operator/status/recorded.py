"""The operator's own record of a job, as it lies in ``status.progress``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from gradsieve_operator.decide import Progress
from gradsieve_operator.errors import RecordError, SpecError
from gradsieve_operator.spec import Compression
from gradsieve_operator.spec.fields import Fields
from gradsieve_operator.status.times import read, written

TIMES = frozenset({"waiting_since", "waited_since", "retry_at", "started", "changed", "finished"})

_MOST_COUNTED = 10**9
"""More was never counted; what is decided from it would not fit into the status any more."""

_LONGEST_PAUSE = 600.0
"""Longer than any pause before something is tried again, in seconds."""


def record(progress: Progress) -> dict[str, Any]:
    """Return the content of ``status.progress``. What is unset is null, so that a merge patch removes it."""
    return {
        _spelled(field.name): _plain(field.name, getattr(progress, field.name)) for field in fields(progress)
    }


def recall(status: Mapping[str, Any]) -> Progress:
    """Return what `record` put into a job's status; a new record where there is none.

    Raises:
        RecordError: somebody else has put something there that was never recorded.
    """
    found = status.get("progress") or {}
    values = {field.name: found.get(_spelled(field.name)) for field in fields(Progress)}
    return Progress(**{name: _checked(name, value) for name, value in values.items() if value is not None})


def not_later(progress: Progress, now: float) -> Progress:
    """Return ``progress`` with no time that is still to come: a clock that was wrong must not stop a job."""
    latest = {name: now + (_LONGEST_PAUSE if name == "retry_at" else 0.0) for name in TIMES}
    times = {name: getattr(progress, name) for name in TIMES}
    late: dict[str, Any] = {
        name: latest[name] for name, time in times.items() if time is not None and time > latest[name]
    }
    return replace(progress, **late)


def _spelled(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Compression):
        return {_spelled(field.name): getattr(value, field.name) for field in fields(value)}
    if name in TIMES:
        return written(value or None, exactly=True)
    if name == "sizes":
        return [{"name": group, "replicas": replicas} for group, replicas in value]
    return list(value) if isinstance(value, tuple) else value


def _checked(name: str, value: Any) -> Any:
    where = f"status.progress.{_spelled(name)}"
    try:
        found = _read(name, value)
    except SpecError as error:
        raise RecordError(error.field, error.problem) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RecordError(where, f"cannot be {value!r}"[:200]) from error
    if isinstance(found, int) and found > _MOST_COUNTED:
        raise RecordError(where, f"is {found}")
    return found


def _read(name: str, value: Any) -> Any:
    if name in TIMES:
        # Before 1970 nothing happened, and the API's times do not go back for ever.
        return max(0.0, read(value) or 0.0)
    if name == "compression":
        source = Fields.of(value, "status.progress.compression")
        compression = Compression.parse(source)
        compression.check(source)
        return compression
    if name == "sizes":
        return tuple((item["name"], item["replicas"]) for item in value)
    return tuple(value) if isinstance(value, list) else value
