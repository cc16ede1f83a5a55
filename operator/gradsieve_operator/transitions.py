"""What becomes of jobs: which of their conditions say something new, and a line of JSON for each of these.

The lines are for machines, beside the log for people, not in its place, and on the standard output, where
nothing else of the operator writes: a collector needs no rule to tell them apart.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Iterator, Mapping
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


def changed(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the conditions that say something new, each as it was, empty for a new one, and as it is.

    Those whose status or reason has changed do; and that ranks follow the plan does once they follow another
    one. How often the status was written in between is nobody's news: both were told by one write where ranks
    followed at once.

    Args:
        before: a job's status before.
        after: its status now.
    """
    known = {each["type"]: each for each in before.get("conditions") or ()}
    for each in after["conditions"]:
        old = known.get(each["type"], {})
        same = (old.get("status"), old.get("reason")) == (each["status"], each["reason"])
        if not same or (_followed(each) and _plan_followed(before) != _plan_followed(after)):
            yield old, each


def _followed(condition: Mapping[str, Any]) -> bool:
    return (condition["type"], condition["reason"]) == ("PlanConverged", "Applied")


def _plan_followed(status: Mapping[str, Any]) -> int:
    """Return the generation of the plan that ranks follow; 0 for none."""
    generation: int = (status.get("plan") or {}).get("appliedGeneration") or 0
    return generation


def log(metadata: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Write a line for each condition of a job that says something new.

    Args:
        metadata: of the job.
        before: its status before.
        after: its status now.
    """
    if not _log.isEnabledFor(logging.INFO):
        return
    for old, new in changed(before, after):
        _log.info("%s", json.dumps(_transition(metadata, old, new)))


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
