"""What planning takes in the cluster as it stands: one gang, and all gangs that wait."""

from __future__ import annotations

import time
from typing import Any

from placement_scale import seconds
from scale.sizes import SHAPES

from gradsieve_operator import decide
from gradsieve_operator.placement import Cluster, Gang, Load, Node, plan, plan_queue
from gradsieve_operator.spec import HorovodJob
from gradsieve_operator.status import recall


def planning_times(nodes: list[Any], pods: list[Any], jobs: list[Any]) -> dict[str, float]:
    """Return processor seconds of planning, as raw objects of the API show the cluster.

    - ``gang_seconds``: the dearest of the waiting gangs, planned alone.
    - ``queue_seconds``: all waiting gangs together.
    """
    known = [Node.parse(each) for each in nodes]
    loads = [load for each in pods if (load := Load.parse(each)) is not None]
    gangs = [_gang(each) for each in jobs]
    return {
        "gang_seconds": max(
            seconds(lambda gang=gang: plan(Cluster.of(known, loads), gang)) for gang in gangs[:SHAPES]
        ),
        "queue_seconds": seconds(lambda: plan_queue(Cluster.of(known, loads), gangs)),
    }


def _gang(body: Any) -> Gang:
    job, progress = HorovodJob.parse(body), recall(body.get("status") or {})
    return Gang.of(
        f"{job.namespace}/{job.name}",
        decide.first_pods(job, progress),
        gpu_products=job.scheduling.gpu_products,
        placement=job.scheduling.placement,
        since=progress.waiting_since or time.time(),
        overtaken=progress.overtaken,
    )
