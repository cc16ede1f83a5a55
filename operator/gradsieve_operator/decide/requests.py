"""What the coordinator is told: who takes part, and how ranks should compress."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from gradsieve_operator import contract
from gradsieve_operator.decide.members import Slot
from gradsieve_operator.decide.world import Pod
from gradsieve_operator.spec import Compression, HorovodJob


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


def plan(generation: int, compression: Compression) -> dict[str, Any]:
    """Return the body of ``PUT /v1/plan``."""
    return {"generation": generation, **compression.manifest()}


def plan_digest(compression: Compression) -> str:
    """Return what tells plans apart, whatever their generation; empty without a plan."""
    if not compression.manifest():
        return ""
    text = json.dumps(compression.manifest(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
