"""A job's numbers: workers by group, the plan, and what rank 0 reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradsieve_operator import contract
from gradsieve_operator.decide import Decision, ObservedState, Pod, effective_compression, plan_to_follow
from gradsieve_operator.decide.members import newest
from gradsieve_operator.decide.observed_state import timestamp
from gradsieve_operator.status.times import written


def groups(
    observed: ObservedState, decision: Decision, gpu_products: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return ``status.workerGroups``.

    Args:
        observed: what was seen.
        decision: what was decided.
        gpu_products: node -> product of its GPUs, for nodes that have any.
    """
    compression, _ = effective_compression(observed)
    ranks_run = decision.progress.running and decision.progress.finished is None
    mode = {"mode": plan_to_follow(observed, compression, decision.progress).mode} if ranks_run else {}
    return [
        {
            "name": group.name,
            "desired": group.replicas,
            **_counts([pod for pod in observed.pods if pod.group == group.name], gpu_products),
            **mode,
        }
        for group in observed.job.groups
    ]


def _counts(pods: list[Pod], gpu_products: Mapping[str, str]) -> dict[str, Any]:
    alive = [pod for pod in pods if pod.alive]
    return {
        "active": len(alive),
        "ready": sum(pod.ready for pod in alive),
        "succeeded": sum(pod.phase == "Succeeded" for pod in pods),
        "failed": sum(pod.phase == "Failed" for pod in pods),
        "gpuProducts": sorted({gpu_products[pod.node] for pod in alive if pod.node in gpu_products}),
    }


def plan(observed: ObservedState, decision: Decision, previous: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return ``status.plan``; None when the job leaves compression to its program."""
    before = previous.get("plan") or {}
    generation = decision.progress.plan_generation
    compression = decision.progress.compression
    if not decision.progress.plan or compression is None:
        return None
    plan, memory = plan_to_follow(observed, compression, decision.progress), decision.progress.adaptation
    changed = (
        before.get("lastChangeTime") if before.get("generation") == generation else written(observed.now)
    )
    applied = (
        before.get("appliedGeneration") if observed.coordinator is None else observed.coordinator.applied_plan
    )
    return {
        "generation": generation,
        "appliedGeneration": applied or 0,
        "mode": plan.mode,
        "densityPermille": plan.density_permille,
        "reason": (memory and memory.reason) or "Specified",
        "evidence": (memory and memory.evidence) or None,
        "lastChangeTime": changed,
    }


def telemetry(
    observed: ObservedState, decision: Decision, previous: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return ``status.telemetry``; what it was where nothing newer is known; None before the first sample."""
    before = previous.get("telemetry")
    coordinator = observed.coordinator
    if coordinator is None or not coordinator.telemetry:
        return None if before is None else dict(before)
    sample, taken = coordinator.telemetry, coordinator.sampled_at(observed.now)
    last = timestamp(before.get("lastSampleTime")) if before else 0.0
    # Of one sample it is told twice how old it is, which is never quite the same.
    soon = abs(taken - last) < observed.pace.telemetry
    if before and soon and decision.progress.finished is None:
        return dict(before)
    step, wait = float(sample["stepSeconds"]), float(sample["waitSeconds"])
    ranks: Sequence[Mapping[str, Any]] = sample.get("ranks") or ()
    slowest = max(ranks, key=lambda rank: float(rank["stepSeconds"]))["host"] if ranks else None
    density, dense = sample.get("densityPermille"), sample.get("denseBytesPerStep")
    window = coordinator.window
    return {
        "lastSampleTime": written(taken),
        "step": int(sample["step"]),
        "stepMilliseconds": round(1000 * step),
        "waitPercent": round(min(100.0, 100 * wait / step)) if step > 0 else 0,
        "wireBytesPerStep": round(sample.get("wireBytesPerStep", 0)),
        "denseBytesPerStep": None if dense is None else round(dense),
        "densityPermille": None if density is None else round(density),
        "committedStep": coordinator.committed_step,
        "slowestWorker": slowest,
        "delayMilliseconds": None if window is None else round(1000 * window.delay),
        "windowSeconds": None if window is None else round(window.seconds),
    }


def exit_code(observed: ObservedState, decision: Decision, previous: Mapping[str, Any]) -> int | None:
    """Return ``status.exitCode``: what the program ended with; None for a job that did not end by itself.

    The coordinator ends with the program's status. It is read when the end is decided: cleaning up then ends
    coordinators that wait for orders, and their status says nothing about the program.
    """
    if decision.progress.finished is None:
        return None
    if decision.progress.succeeded:
        return 0
    if decision.ended is None:
        return previous.get("exitCode")
    coordinator = newest(observed.pods).get(contract.COORDINATOR_HOST)
    # 0 is no status of a job that failed: its ranks ended well, and then something else was lost.
    return (coordinator.exit_code or None) if coordinator is not None else None


def workers_ready(observed: ObservedState) -> int:
    """Return how many workers are ready."""
    return sum(pod.ready and pod.alive and pod.role == contract.ROLE_WORKER for pod in observed.pods)
