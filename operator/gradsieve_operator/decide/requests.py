"""What the coordinator is told: who takes part, and how ranks should compress."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradsieve_operator import contract
from gradsieve_operator.adapt import Plan
from gradsieve_operator.decide.members import Slot
from gradsieve_operator.decide.observed_state import Pod
from gradsieve_operator.spec import Compression, HorovodJob
from gradsieve_operator.spec.steering import Parallelism
from gradsieve_operator.spec.values import BOUNDED_MODES, Mode


def roster(
    job: HorovodJob,
    generation: int,
    members: Sequence[tuple[Slot, Pod]],
    compression: Compression,
) -> dict[str, Any]:
    """Return the body of ``PUT /v1/roster``: the only source of commands and of who may take part.

    Args:
        job: whose coordinator it is for.
        generation: of the roster.
        members: who takes part, in the order of ranks.
        compression: what ranks start with; what is not set is left to the program.
    """
    environment = {}
    if compression.manifest():
        environment[contract.ENV_COMPRESSION] = json.dumps(compression.manifest(), sort_keys=True)
    hosts = [
        {"host": slot.host, "podUID": pod.uid, "slots": slot.group.slots_per_worker} for slot, pod in members
    ]
    body: dict[str, Any] = {
        "generation": generation,
        "command": list(job.command),
        "backend": job.launcher.backend,
        "env": environment,
        "hosts": hosts,
    }
    if any(group.min_replicas is not None for group in job.groups):
        body["minHosts"] = min(len(hosts), sum(group.least for group in job.groups))
    return body


def plan(
    compression: Compression, follow: Plan, modes: Collection[Mode], parallelism: Parallelism
) -> dict[str, Any]:
    """Return the body of ``PUT /v1/plan`` but for its generation; empty if there is nothing to tell.

    Args:
        compression: what ranks go by.
        follow: how they shall train; its density takes the place of the compression's.
        modes: that their program can change to. One that can change to none is not told any.
        parallelism: as asked for; its staleness bound is told with the mode that it is for.
    """
    if follow.density_permille is not None:
        compression = replace(compression, density_permille=follow.density_permille)
    told = dict(compression.manifest())
    if modes:
        told["mode"] = follow.mode
        if follow.local_steps is not None:
            told["localSteps"] = follow.local_steps
        if follow.mode == parallelism.mode in BOUNDED_MODES and parallelism.staleness_bound is not None:
            told["stalenessBound"] = parallelism.staleness_bound
    return told


def plan_digest(plan: Mapping[str, Any]) -> str:
    """Return what tells plans apart, whatever their generation; empty without a plan."""
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:16] if plan else ""
