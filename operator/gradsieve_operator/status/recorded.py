"""The operator's own record of a job, as it lies in ``status.progress``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from gradsieve_operator.decide import Progress
from gradsieve_operator.spec import Compression
from gradsieve_operator.spec.fields import Fields
from gradsieve_operator.status.times import read, written

TIMES = frozenset({"waiting_since", "waited_since", "retry_at", "started", "changed", "finished"})


def record(progress: Progress) -> dict[str, Any]:
    """Return the content of ``status.progress``. What is unset is null, so that a merge patch removes it."""
    return {
        _spelled(field.name): _plain(field.name, getattr(progress, field.name)) for field in fields(progress)
    }


def recall(status: Mapping[str, Any]) -> Progress:
    """Return what `record` put into a job's status; a new record where there is none."""
    found = status.get("progress") or {}
    values = {field.name: found.get(_spelled(field.name)) for field in fields(Progress)}
    return Progress(**{name: _read(name, value) for name, value in values.items() if value is not None})


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


def _read(name: str, value: Any) -> Any:
    if name in TIMES:
        return read(value)
    if name == "compression":
        return Compression.parse(Fields.of(value, "status.progress.compression"))
    if name == "sizes":
        return tuple((item["name"], item["replicas"]) for item in value)
    return tuple(value) if isinstance(value, list) else value
