"""The operator's own record of a job, as it lies in ``status.record``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from gradsieve_operator.adapt import Memory
from gradsieve_operator.decide import Progress
from gradsieve_operator.errors import RecordError, SpecError
from gradsieve_operator.spec import Compression
from gradsieve_operator.spec.fields import Fields
from gradsieve_operator.spec.values import MODES
from gradsieve_operator.status.times import read

TIMES = frozenset(
    {
        "waiting_since",
        "waited_since",
        "retry_at",
        "started",
        "changed",
        "finished",
        "failed_at",
        "disrupted_at",
    }
)

_MOST_COUNTED = 10**9
"""More was never counted; what is decided from it would not fit into the status any more."""

_LONGEST_PAUSE = 600.0
"""Longer than any pause before something is tried again, in seconds."""


def record(progress: Progress) -> dict[str, Any]:
    """Return the part of a job's status that holds ``progress``: one line of JSON, without what is unset.

    A text, not a field for each number: it is for nobody else to read, and ``kubectl describe`` shows it as
    one line. Earlier versions kept it in the fields of ``status.progress``.
    """
    told = {
        spelled: _plain(getattr(progress, name))
        for name, spelled in _SPELLED.items()
        if getattr(progress, name) != getattr(_NOTHING, name)
    }
    return {"record": json.dumps(told, separators=(",", ":"))}


def recall(status: Mapping[str, Any]) -> Progress:
    """Return what `record`, or an earlier version's, put into a job's status; a new record for none.

    Raises:
        RecordError: somebody else has put something there that was never recorded.
    """
    if "record" not in status:
        found = status.get("progress") or {}
        # All restarts were failures then.
        return _progress("progress", {"failures": found.get("restarts"), **found}, read)
    try:
        found = json.loads(status["record"])
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordError("status.record", f"cannot be {status['record']!r}"[:200]) from error
    if not isinstance(found, dict):
        raise RecordError("status.record", f"cannot be {found!r}"[:200])
    return _progress("record", found, _seconds)


def waiting_since(status: Mapping[str, Any]) -> float | None:
    """Return since when a job has waited for places; None if it does not, or its record cannot be read."""
    try:
        return recall(status).waiting_since
    except RecordError:
        # That is said when the job is looked at.
        return None


def not_later(progress: Progress, now: float) -> Progress:
    """Return ``progress`` with no time that is still to come: a clock that was wrong must not stop a job."""
    late: dict[str, Any] = {}
    for name in TIMES:
        time, latest = getattr(progress, name), now + (_LONGEST_PAUSE if name == "retry_at" else 0.0)
        if time is not None and time > latest:
            late[name] = latest
    return replace(progress, **late) if late else progress


def _spelled(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


_NOTHING = Progress()
_SPELLED = {field.name: _spelled(field.name) for field in fields(Progress)} | {
    "placement_failures": "setbacks",  # as earlier versions have recorded it
}
"""Of each field its name in the record."""


def _plain(value: Any) -> Any:
    return value.manifest() if isinstance(value, Compression | Memory) else value


def _progress(root: str, found: Mapping[str, Any], time: Callable[[Any], float | None]) -> Progress:
    return Progress(
        **{
            name: _checked(f"status.{root}.{spelled}", name, value, time)
            for name, spelled in _SPELLED.items()
            if (value := found.get(spelled)) is not None
        }
    )


def _checked(where: str, name: str, value: Any, time: Callable[[Any], float | None]) -> Any:
    try:
        found = _read(where, name, value, time)
    except SpecError as error:
        raise RecordError(error.field, error.problem) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RecordError(where, f"cannot be {value!r}"[:200]) from error
    if isinstance(found, int) and not 0 <= found <= _MOST_COUNTED:
        raise RecordError(where, f"is {found}")
    return found


def _read(where: str, name: str, value: Any, time: Callable[[Any], float | None]) -> Any:
    if name in TIMES:
        # Before 1970 nothing happened, and the API's times do not go back for ever.
        return max(0.0, time(value) or 0.0)
    if name == "compression":
        source = Fields.of(value, where)
        compression = Compression.parse(source)
        compression.check(source, adapted=True)
        return compression
    if name == "modes":
        return tuple(mode for mode in MODES if mode in [_exactly(str, each) for each in value])
    if name == "adaptation":
        return Memory.read(Fields.of(value, where).values, where)
    if name == "sizes":
        pairs = [(each["name"], each["replicas"]) if isinstance(each, dict) else each for each in value]
        return tuple((_exactly(str, group), _exactly(int, replicas)) for group, replicas in pairs)
    if name in ("absent", "origins"):
        return tuple(_exactly(str, each) for each in value)
    return _exactly(type(getattr(_NOTHING, name)), value)


def _exactly(kind: type, value: Any) -> Any:
    """Return ``value``, which must be of that very kind: true is not a number."""
    if type(value) is not kind:
        raise TypeError(f"not a {kind.__name__}")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError("not a time")
    return float(value)
