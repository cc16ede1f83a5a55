"""What a coordinator says of itself. Its pod is the user's: nothing in it is taken for what it should be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gradsieve_operator import contract
from gradsieve_operator.adapt import Window, read_window
from gradsieve_operator.decide import CoordinatorStatus
from gradsieve_operator.errors import SpecError
from gradsieve_operator.foreign_text import one_line
from gradsieve_operator.spec.fields import Fields
from gradsieve_operator.spec.values import (
    LABEL_VALUE,
    MAX_DENSITY,
    MAX_LABEL_VALUE,
    MAX_SLOTS,
    MAX_WORKERS,
    MODES,
    Mode,
)

_STATES: Final = (
    contract.STATE_WAITING,
    contract.STATE_STARTING,
    contract.STATE_RUNNING,
    contract.STATE_SUCCEEDED,
    contract.STATE_FAILED,
    contract.STATE_LOST,
)
_MOST_HOSTS: Final = 4 * MAX_WORKERS
"""A job may grow to twice its size, and a host's last incarnation may be there beside the next."""

_MOST_RANKS: Final = MAX_WORKERS * MAX_SLOTS
_MANY: Final = 2**53 - 1
_MOST_MODES: Final = 16
_LONGEST_MESSAGE: Final = 4096
_LAST_TIME, _LONGEST_STEP, _LONGEST_ABSENCE = 1e11, 1e9, 1e9
"""Seconds; what is more fits into no field of the job's status."""


def read_status(found: Mapping[str, Any]) -> CoordinatorStatus:
    """Read a coordinator's status; telemetry that is not as it must be, which rank 0 has sent, is left out.

    Raises:
        SpecError: a field is not as it must be.
    """
    fields = Fields(found, "status")
    plan = fields.object("plan")
    registered = [
        Fields.of(each, fields.at("registered")) for each in fields.items("registered", _MOST_HOSTS)
    ]
    try:
        telemetry, committed = _telemetry(fields), fields.number("committedStep", 0, _MANY)
        known = telemetry and fields.has("telemetryAge")
        age = _amount(fields, "telemetryAge", _LONGEST_ABSENCE) if known else None
    except SpecError:
        telemetry, committed, age = {}, None, None
    return CoordinatorStatus(
        generation=fields.number_or("generation", 0, 0, _MANY),
        state=fields.word_or("state", contract.STATE_WAITING, _STATES),
        connected=frozenset(_host(each) for each in registered if each.flag("connected", default=False)),
        missing=_hosts(fields, "missing"),
        missing_seconds=_absences(fields.object("missingSeconds")),
        message=one_line(str(found.get("message") or "")[:_LONGEST_MESSAGE]),
        plan_generation=plan.number_or("generation", 0, 0, _MANY),
        applied_plan=plan.number_or("appliedGeneration", 0, 0, _MANY),
        telemetry=telemetry,
        telemetry_age=age,
        committed_step=committed,
        window=None if age is None else _window(found, age),
        modes=_modes(found) if telemetry else None,
    )


def _telemetry(fields: Fields) -> dict[str, Any]:
    """Return of the last sample what the job's status shows; empty before the first."""
    if not fields.has("telemetry"):
        return {}
    sample = fields.object("telemetry")
    ranks = [Fields.of(each, sample.at("ranks")) for each in sample.items("ranks", _MOST_RANKS)]
    optional = {
        "wireBytesPerStep": float(_MANY),
        "denseBytesPerStep": float(_MANY),
        "densityPermille": float(MAX_DENSITY),
    }
    return {
        "time": _amount(sample, "time", _LAST_TIME),
        "step": sample.number_or("step", 0, 0, _MANY),
        "stepSeconds": _amount(sample, "stepSeconds", _LONGEST_STEP),
        "waitSeconds": _amount(sample, "waitSeconds", _LONGEST_STEP),
        **{name: _amount(sample, name, most) for name, most in optional.items() if sample.has(name)},
        "ranks": [
            {"host": _host(rank), "stepSeconds": _amount(rank, "stepSeconds", _LONGEST_STEP)}
            for rank in ranks
        ],
    }


def _window(found: Mapping[str, Any], age: float) -> Window | None:
    """Return what was measured lately; None where a coordinator does not say, or says what cannot be read."""
    window = found.get("window")
    try:
        return read_window(window, age) if isinstance(window, Mapping) else None
    except SpecError:
        return None


def _modes(found: Mapping[str, Any]) -> tuple[Mode, ...]:
    """Return the modes that the program can change to; what is no mode is left out."""
    said = found["telemetry"].get("modes")
    words = said[:_MOST_MODES] if isinstance(said, list) else []
    return tuple(mode for mode in MODES if mode != "Auto" and mode in words)


def _absences(fields: Fields) -> dict[str, float]:
    if len(fields.values) > _MOST_HOSTS:
        raise SpecError(fields.path, f"has {len(fields.values)} hosts; at most {_MOST_HOSTS} are allowed")
    hosts = [_host(Fields({"host": host}, fields.path)) for host in fields.values]
    return {host: _amount(fields, host, _LONGEST_ABSENCE) for host in hosts}


def _amount(fields: Fields, name: str, most: float) -> float:
    """Return a number that need not be whole; infinity and what is not a number are above any ``most``."""
    found = fields.values.get(name)
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found <= most:
        raise fields.error(name, f"must be a number from 0 to {most:g}")
    return found


def _host(fields: Fields) -> str:
    return fields.name("host", LABEL_VALUE, MAX_LABEL_VALUE) or ""


def _hosts(fields: Fields, name: str) -> tuple[str, ...]:
    return tuple(_host(Fields({"host": each}, fields.at(name))) for each in fields.items(name, _MOST_HOSTS))
