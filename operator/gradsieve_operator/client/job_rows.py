"""What ``gradsieve top`` shows of a job, from its spec and its status alone: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gradsieve_operator.client.submission import GPUS
from gradsieve_operator.foreign_text import one_line
from gradsieve_operator.spec.quantity import units

NOTHING = "-"
"""What is not known. No cell is empty or has a blank in it, so that scripts can count columns."""

HEADER = (
    "NAMESPACE",
    "NAME",
    "STATE",
    "GROUPS",
    "GPUS",
    "STEP",
    "STEP-TIME",
    "WAIT",
    "DENSITY",
    "SENT",
    "SAVED",
    "SLOWEST",
)
_SCALES = ("B", "kB", "MB", "GB", "TB", "PB")
_THOUSAND = 1000
_ATTENTION = frozenset(
    {"Failed", "InvalidSpec", "NoPlace", "Restarting", "CoordinatorSilent", "ReconcileError"}
)


@dataclass(frozen=True)
class JobRow:
    """One job.

    Attributes:
        cells: its texts, in the order of `HEADER`.
        state: reason of its condition Running.
    """

    cells: tuple[str, ...]
    state: str

    @property
    def needs_attention(self) -> bool:
        """Whether somebody should look at it."""
        return self.state in _ATTENTION


def job_row(job: Mapping[str, Any]) -> JobRow:
    """Return the row of a HorovodJob as the API server returns it.

    Numbers of the last sample but its step are shown while ranks run: afterwards they say nothing about now.
    """
    metadata, status = job["metadata"], job.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    running = conditions.get("Running", {})
    state = one_line(running.get("reason") or NOTHING)
    sample = status.get("telemetry") or {} if running.get("status") == "True" else {}
    step = (status.get("telemetry") or {}).get("step")
    cells = (
        metadata["namespace"],
        metadata["name"],
        state,
        _groups(job["spec"], status),
        _gpus(job["spec"], status),
        _or_nothing(step, str),
        _or_nothing(sample.get("stepMilliseconds"), "{}ms".format),
        _or_nothing(sample.get("waitPercent"), "{}%".format),
        _or_nothing(sample.get("densityPermille"), lambda of_1000: f"{of_1000 / 10:g}%"),
        _or_nothing(sample.get("wireBytesPerStep"), size),
        _saved(sample),
        one_line(sample.get("slowestWorker") or NOTHING),
    )
    return JobRow(cells, state)


PLAN_HEADER = ("MODE", "PLAN", "APPLIED", "REASON", "LOSS")


def plan_cells(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the plan of a HorovodJob, in the order of `PLAN_HEADER` but for the loss."""
    plan = (job.get("status") or {}).get("plan") or {}
    names = ("mode", "generation", "appliedGeneration", "reason")
    return tuple(one_line(str(plan.get(name, NOTHING))) for name in names)


def job_rows(jobs: Iterable[Mapping[str, Any]]) -> list[JobRow]:
    """Return the rows of jobs, by namespace and name."""
    return sorted((job_row(job) for job in jobs), key=lambda row: row.cells[:2])


def size(count: int) -> str:
    """Return a number of bytes with three digits."""
    amount, scale = float(count), 0
    while amount >= _THOUSAND and scale < len(_SCALES) - 1:
        amount, scale = amount / _THOUSAND, scale + 1
    return f"{amount:.3g}{_SCALES[scale]}"


def _groups(spec: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    ready = {group["name"]: group.get("ready", 0) for group in status.get("workerGroups") or ()}
    groups = spec.get("workerGroups") or ()
    return ",".join(f"{group['name']}:{ready.get(group['name'], 0)}/{group['replicas']}" for group in groups)


def _gpus(spec: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """Return how many GPUs each group asks for, with the products that it has got."""
    products = {group["name"]: group.get("gpuProducts") or () for group in status.get("workerGroups") or ()}
    found = []
    for group in spec.get("workerGroups") or ():
        limits = group["template"]["spec"]["containers"][0].get("resources", {}).get("limits") or {}
        if count := units(GPUS, limits.get(GPUS, 0), "limits"):
            product = "|".join(one_line(each) for each in products.get(group["name"], ()))
            found.append(f"{group['replicas'] * count}x{product or 'GPU'}")
    return ",".join(found) or NOTHING


def _saved(sample: Mapping[str, Any]) -> str:
    """Return how much less is sent than without compression."""
    sent, dense = sample.get("wireBytesPerStep"), sample.get("denseBytesPerStep")
    if sent is None or not dense:
        return NOTHING
    return f"{100 * (1 - sent / dense):.1f}%"


def _or_nothing(value: Any, shown: Any) -> str:
    return NOTHING if value is None else shown(value)
