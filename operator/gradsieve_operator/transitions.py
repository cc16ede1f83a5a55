"""What becomes of jobs, as lines of JSON for machines: one for each condition that changes.

Beside the log for people, not in its place, and on the standard output, where nothing else of the operator
writes: a collector needs no rule to tell them apart.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Mapping
from typing import Any, Final, TextIO

from gradsieve_operator.errors import SpecError

VARIABLE: Final = "GRADSIEVE_LOG_TRANSITIONS"
_JSON: Final = "json"

_log = logging.getLogger(__name__)
_log.propagate = False
_log.setLevel(logging.CRITICAL)


def wanted(environment: Mapping[str, str]) -> bool:
    """Return whether the environment asks for transitions.

    Raises:
        SpecError: it asks for a format that is not known.
    """
    found = environment.get(VARIABLE, "")
    if found not in ("", _JSON):
        raise SpecError(VARIABLE, f"must be {_JSON!r} or empty, not {found!r}")
    return found == _JSON


def write_to(stream: TextIO) -> None:
    """Write transitions to ``stream`` from now on."""
    _log.handlers = [logging.StreamHandler(stream)]
    _log.setLevel(logging.INFO)


def log(metadata: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Write a line for each condition of a job whose status or reason has changed.

    Args:
        metadata: of the job.
        before: its status before.
        after: its status now.
    """
    if not _log.isEnabledFor(logging.INFO):
        return
    known = {each["type"]: each for each in before.get("conditions") or ()}
    for each in after["conditions"]:
        old = known.get(each["type"], {})
        if (old.get("status"), old.get("reason")) != (each["status"], each["reason"]):
            _log.info("%s", json.dumps(_transition(metadata, old, each)))


def _transition(
    metadata: Mapping[str, Any], old: Mapping[str, Any], new: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a line's fields; what is unknown is null, so that all lines have the same ones."""
    return {
        "time": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
        "namespace": metadata["namespace"],
        "job": metadata["name"],
        "uid": metadata.get("uid"),
        "generation": new.get("observedGeneration"),
        "condition": new["type"],
        "status": new["status"],
        "reason": new["reason"],
        "message": new["message"],
        "previousStatus": old.get("status"),
        "previousReason": old.get("reason"),
    }
