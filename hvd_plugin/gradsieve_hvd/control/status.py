"""The job's state as programs see it: JSON for the operator, numbers for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gradsieve_hvd.control.contract import STATES
from gradsieve_hvd.control.job_state_machine import JobStateMachine

# Name of the metric, JSON field of the telemetry, factor to the metric's unit, what it is.
_SAMPLES = (
    ("gradsieve_step_seconds", "stepSeconds", 1.0, "Seconds per step, mean over the ranks."),
    ("gradsieve_wait_seconds", "waitSeconds", 1.0, "Seconds per step spent waiting, mean over the ranks."),
    (
        "gradsieve_select_seconds",
        "selectSeconds",
        1.0,
        "Seconds per step spent selecting, encoding and adding up, mean over the ranks.",
    ),
    ("gradsieve_wire_bytes_per_step", "wireBytesPerStep", 1.0, "Bytes sent per step, mean over the ranks."),
    (
        "gradsieve_dense_bytes_per_step",
        "denseBytesPerStep",
        1.0,
        "Bytes of a step's gradients without compression, mean over the ranks.",
    ),
    ("gradsieve_density_ratio", "densityPermille", 1e-3, "Share of the gradient's entries that is sent."),
    ("gradsieve_applied_plan_generation", "appliedPlanGeneration", 1.0, "Plan that the ranks follow."),
    ("gradsieve_committed_step", "committedStep", 1.0, "Step of the last commit."),
    ("gradsieve_loss", "loss", 1.0, "Loss that rank 0 reports."),
)


def status_json(job: JobStateMachine, started_at: str | None) -> dict[str, Any]:
    """Everything that the operator wants to know; neither the command nor its environment.

    Args:
        job: the job.
        started_at: when the ranks were started, as RFC 3339; None before.
    """
    registry, telemetry = job.registry, job.measured.telemetry
    registered = [
        {"host": who.host, "podUID": who.uid, "connected": True, "admitted": registry.is_admitted(who)}
        for who in sorted(registry.connected)
    ]
    gone = [
        {"host": host, "podUID": registry.uid(host), "connected": False, "admitted": True}
        for host in registry.missing()
        if registry.uid(host)
    ]
    status: dict[str, Any] = {
        "generation": job.generation,
        "state": job.state,
        "registered": registered + gone,
        "missing": registry.missing(),
        "missingSeconds": registry.missing_seconds(),
        "exitCode": None if job.end is None else job.end.status,
        "message": job.message,
        "startedAt": started_at,
        "plan": {"generation": None, "appliedGeneration": None},
        "telemetry": None if telemetry is None else telemetry.to_json(),
        "telemetryAge": job.measured.age,
        "window": job.measured.window.to_json(),
        "refusedReports": job.refused_reports,
        "lostHosts": list(job.lost_hosts),
    }
    if job.plan is not None:
        status["plan"]["generation"] = job.plan.generation
    if telemetry is not None:
        applied = telemetry.numbers.get("appliedPlanGeneration")
        status["plan"]["appliedGeneration"] = None if applied is None else int(applied)
        if "committedStep" in telemetry.numbers:
            status["committedStep"] = int(telemetry.numbers["committedStep"])
    return status


class _Collector:
    def __init__(self, job: JobStateMachine) -> None:
        self._job = job

    def collect(self) -> Iterator[Metric]:
        job, registry = self._job, self._job.registry
        states = GaugeMetricFamily("gradsieve_job_state", "1 for the state of the job.", labels=["state"])
        for state in STATES:
            states.add_metric([state], float(state == job.state))
        yield states
        yield _gauge("gradsieve_roster_generation", "Generation of the roster.", job.generation)
        yield _gauge("gradsieve_registered_hosts", "Agents that are connected.", len(registry.connected))
        yield _gauge("gradsieve_missing_hosts", "Hosts of the roster without agent.", len(registry.missing()))
        refused = CounterMetricFamily(
            "gradsieve_refused_reports", "Reports of telemetry that were refused: of other hosts' ranks, say."
        )
        refused.add_metric([], job.refused_reports)
        yield refused
        if job.plan is not None:
            yield _gauge("gradsieve_plan_generation", "Generation of the plan.", job.plan.generation)
        telemetry = job.measured.telemetry
        if telemetry is None:
            return
        yield _gauge("gradsieve_step", "Number of the last finished step.", telemetry.step)
        for name, field, factor, text in _SAMPLES:
            if field in telemetry.numbers:
                yield _gauge(name, text, telemetry.numbers[field] * factor)
        ranks = GaugeMetricFamily(
            "gradsieve_rank_step_seconds", "Seconds per step of every rank.", labels=["rank", "host"]
        )
        for rank in telemetry.ranks:
            ranks.add_metric([str(rank.rank), rank.host], rank.step_seconds)
        yield ranks


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def metrics_text(job: JobStateMachine) -> bytes:
    """The metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(job))
    return generate_latest(registry)
