"""HorovodJob's status, from what was seen and decided: pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradsieve_operator.decide import Decision, ObservedState
from gradsieve_operator.errors import SpecError
from gradsieve_operator.status import summary
from gradsieve_operator.status.conditions import conditions, invalid, merged, troubled
from gradsieve_operator.status.recorded import not_later, recall, record, waiting_since
from gradsieve_operator.status.times import written

_OF_GROUPS = frozenset({"desired", "workerGroups", "plan"})

__all__ = [
    "invalid_status",
    "job_status",
    "not_later",
    "recall",
    "record",
    "troubled_status",
    "waiting_since",
]


def job_status(
    observed: ObservedState, decision: Decision, previous: Mapping[str, Any], gpu_products: Mapping[str, str]
) -> dict[str, Any]:
    """Return the status of a job. What is unset is null, so that a merge patch removes it.

    Of a spec whose groups cannot be read, what depends on them is left out: it stays as it was.

    Args:
        observed: what was seen.
        decision: what was decided, and done.
        previous: the status before.
        gpu_products: node -> product of its GPUs, for nodes that have any.
    """
    job, progress = observed.job, decision.progress
    current = conditions(observed, decision, previous)
    status = {
        "observedGeneration": job.generation,
        "startTime": written(progress.started),
        "completionTime": written(progress.finished),
        "exitCode": summary.exit_code(observed, decision, previous),
        "restartCount": progress.restarts,
        "desired": job.workers,
        "ready": summary.workers_ready(observed),
        "conditions": merged(
            previous.get("conditions") or [], current, generation=job.generation, now=observed.now
        ),
        "workerGroups": summary.groups(observed, decision, gpu_products),
        "plan": summary.plan(observed, decision, previous),
        "telemetry": summary.telemetry(observed, decision, previous),
        **record(progress),
    }
    if not job.groups:
        status = {name: value for name, value in status.items() if name not in _OF_GROUPS}
    return status


def invalid_status(
    error: SpecError, previous: Mapping[str, Any], *, generation: int, now: float
) -> dict[str, Any]:
    """Return what changes in the status of a job that the operator cannot run as it is written."""
    return {
        "observedGeneration": generation,
        "conditions": merged(
            previous.get("conditions") or [], invalid(str(error)), generation=generation, now=now
        ),
    }


def troubled_status(problem: str, previous: Mapping[str, Any], *, now: float) -> dict[str, Any]:
    """Return what changes in the status of a job that the operator fails to work on, for its own reasons.

    ``observedGeneration`` stays: what is asked for now was not looked at.

    Args:
        problem: what went wrong, in words.
        previous: the status before.
        now: the time.
    """
    known, seen = previous.get("conditions") or [], previous.get("observedGeneration") or 0
    current = troubled(problem, known)
    return {"conditions": merged(known, current, generation=seen, now=now)}
