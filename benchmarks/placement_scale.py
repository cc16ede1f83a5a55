"""What planning costs in a large, nearly full cluster: one gang, and all gangs that wait.

Run with ``python benchmarks/placement_scale.py``; prints one line of JSON. Needs no cluster: nodes, pods and
jobs are made up, the same for the same seed. Seconds are processor time, the least of a few tries, so that a
machine shared with others does not disturb them much.

- ``pass_seconds``: all waiting gangs together.
- ``gang_seconds``: the dearest gang that is planned alone.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence

from gradsieve_operator.placement import Assignment, Cluster, Gang, Load, Node, plan, plan_queue

GPU = "nvidia.com/gpu"
PRODUCTS = ("H100", "A100", "L40S", "V100", "T4")
_GI = 1 << 30


def make_nodes(count: int) -> list[Node]:
    """Nodes of five GPU products in three zones."""
    return [
        Node.parse(
            {
                "metadata": {
                    "name": f"node-{index:04}",
                    "labels": {
                        "kubernetes.io/hostname": f"node-{index:04}",
                        "topology.kubernetes.io/zone": f"zone-{index % 3}",
                        "nvidia.com/gpu.product": PRODUCTS[index % len(PRODUCTS)],
                        "nvidia.com/gpu.memory": str(81920 >> index % len(PRODUCTS)),
                    },
                },
                "spec": {},
                "status": {
                    "allocatable": {"cpu": "96", "memory": "768Gi", "pods": "110", GPU: "8"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
        )
        for index in range(count)
    ]


def make_loads(nodes: Sequence[Node], pods: int, full: float, chance: random.Random) -> list[Load]:
    """Pods that hold ``full`` of the cluster's GPUs and as much of its processors."""
    loads, gpus = [], round(len(nodes) * 8 * full)
    # Free GPUs lie together here and there, as they do where jobs have ended.
    order = chance.sample(range(len(nodes)), len(nodes))
    left = [8 if rank < gpus // 8 else gpus % 8 if rank == gpus // 8 else 0 for rank in range(len(nodes))]
    for _ in range(len(nodes)):
        one, other = chance.randrange(len(nodes)), chance.randrange(len(nodes))
        if left[one] and left[other] < 8:
            left[one], left[other] = left[one] - 1, left[other] + 1
    for index in range(pods):
        rank = index % len(nodes)
        gpu = min(left[rank], 1)
        left[rank] -= gpu
        cpu = round(96_000 * full * len(nodes) / pods)
        amounts = {"cpu": cpu, "memory": chance.randint(1, 30) * _GI, "pods": 1, **({GPU: 1} if gpu else {})}
        loads.append(Load(node=nodes[order[rank]].name, requests=amounts, ends=index % 3 == 0))
    return loads


def make_gangs(count: int, shapes: int, chance: random.Random) -> list[Gang]:
    """Waiting gangs of ``shapes`` different kinds, of one to four groups each."""
    return [make_gang(index, random.Random(index % shapes), chance) for index in range(count)]


def make_gang(index: int, kind: random.Random, chance: random.Random) -> Gang:
    """Return a gang whose groups depend on ``kind`` alone."""
    manifests = [_pod(index, "coordinator", 0, "coordinator", {"cpu": "100m", "memory": "256Mi"}, {})]
    products = tuple(kind.sample(PRODUCTS, kind.choice((0, 1, 2))))
    for group in range(kind.randint(1, 4)):
        requests = {"cpu": str(kind.choice((1, 2, 4, 8))), "memory": f"{kind.choice((4, 16, 64))}Gi"}
        requests[GPU] = str(kind.choice((0, 1, 1, 2, 4, 8)))
        zone = {"topology.kubernetes.io/zone": f"zone-{kind.randrange(3)}"}
        spec = {"nodeSelector": zone} if kind.random() < 0.3 else {}
        workers = range(kind.choice((1, 2, 4, 8, 16)))
        manifests += [_pod(index, f"g{group}", worker, "worker", requests, spec) for worker in workers]
    return Gang.of(
        f"team-{index % 10}/job-{index:03}",
        manifests,
        gpu_products=products,
        placement=kind.choice(("Fastest", "Fastest", "Pack", "Spread")),
        priority=kind.choice((0, 0, 0, 100)),
        since=1000.0 + index,
        overtaken=chance.choice((0, 0, 1, 3)),
    )


def _pod(
    index: int, group: str, worker: int, role: str, requests: dict[str, str], spec: dict[str, object]
) -> dict[str, object]:
    labels = {
        "gradsieve.io/job": f"job-{index:03}",
        "gradsieve.io/role": role,
        "gradsieve.io/index": f"{worker}",
    }
    if role == "worker":
        labels["gradsieve.io/group"] = group
    return {
        "metadata": {
            "name": f"job-{index:03}-{group}-{worker}-1",
            "namespace": f"team-{index % 10}",
            "labels": labels,
        },
        "spec": {"containers": [{"name": "train", "resources": {"requests": requests}}], **spec},
    }


def seconds(work: Callable[[], object], tries: int = 3) -> float:
    """Processor time of this thread, the least of some tries."""
    spent = []
    for _ in range(tries):
        began = time.thread_time()
        work()
        spent.append(time.thread_time() - began)
    return min(spent)


def main() -> None:
    """Make a cluster, plan, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--waiting", type=int, default=250)
    parser.add_argument("--shapes", type=int, default=60)
    parser.add_argument("--full", type=float, default=0.95, help="part of the cluster that is taken")
    arguments = parser.parse_args()
    chance = random.Random(1)
    nodes = make_nodes(arguments.nodes)
    loads = make_loads(nodes, arguments.pods, arguments.full, chance)
    gangs = make_gangs(arguments.waiting, arguments.shapes, chance)
    found = plan_queue(Cluster.of(nodes, loads), gangs)
    result = {
        **vars(arguments),
        "placed": sum(isinstance(each, Assignment) for each in found.values()),
        "cluster_seconds": seconds(lambda: Cluster.of(nodes, loads)),
        "pass_seconds": seconds(lambda: plan_queue(Cluster.of(nodes, loads), gangs)),
        "gang_seconds": max(
            seconds(lambda gang=gang: plan(Cluster.of(nodes, loads), gang)) for gang in gangs
        ),
    }
    print(json.dumps({key: round(value, 4) for key, value in result.items()}))


if __name__ == "__main__":
    main()
