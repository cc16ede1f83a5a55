"""How long a HorovodJob takes from `kubectl apply` to its first training step, and what the time goes into.

    PYTHONPATH=tests/e2e python benchmarks/apply_to_first_step.py [--runs 5]

It starts three nodes on this machine (see tests/e2e/README.md), installs the operator from its manifests, and
applies a job of four ranks under MPI again and again. The first run warms file caches and is not counted.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import yaml
from cluster.local import Cluster
from kubernetes import client, watch
from operator_deployment import deployed_operator
from sample_jobs import SAMPLES, SampleJob
from urllib3.exceptions import HTTPError

PROGRAM = """
import os, time
began = float(open("/proc/self/stat").read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
import torch
moments = {"rank processes started": booted + began, "torch imported": time.time()}
import horovod.torch as hvd, gradsieve_hvd
moments["Horovod and gradsieve imported"] = time.time()
hvd.init()
moments["Horovod initialised"] = time.time()
model = torch.nn.Linear(1000, 100)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters(),
    compression=gradsieve_hvd.Compression.laplace(density=0.01))
model(torch.randn(8, 1000)).square().mean().backward()
optimizer.step()
moments["first step"] = time.time()
import json
print("MOMENTS", json.dumps(moments), flush=True)
"""
RANKS = 4
_SECONDS = 300.0


class Witness:
    """Sees when the job's pods are made, bound and running; each moment is that of the last pod."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.seen: dict[str, dict[str, float]] = {}
        self._watch = watch.Watch()
        self._follow = threading.Thread(target=self._look, args=(cluster, namespace), daemon=True)
        self._follow.start()

    def moments(self) -> dict[str, float]:
        """Return what was seen."""
        names = ("pods created", "pods bound", "containers seen running")
        return {name: max(pod.get(name, 0.0) for pod in self.seen.values()) for name in names}

    def stop(self) -> None:
        """Stop looking."""
        self._watch.stop()

    def _look(self, cluster: Cluster, namespace: str) -> None:
        pods = client.CoreV1Api(cluster.api).list_namespaced_pod
        # The watch may outlast the cluster.
        with suppress(HTTPError):
            for event in self._watch.stream(pods, namespace, timeout_seconds=int(_SECONDS)):
                # A line that was cut short when the watch was stopped comes as nothing.
                if event is not None:
                    self._take(event["object"], time.time())

    def _take(self, pod: client.V1Pod, now: float) -> None:
        known = self.seen.setdefault(pod.metadata.name, {})
        known.setdefault("pods created", now)
        if pod.spec.node_name:
            known.setdefault("pods bound", now)
        if pod.status.phase == "Running":
            known.setdefault("containers seen running", now)


def job() -> dict[str, Any]:
    """Return the smallest sample with four workers."""
    found: dict[str, Any] = yaml.safe_load((SAMPLES / "minimal.yaml").read_text())
    group = found["spec"]["workerGroups"][0]
    group["replicas"] = RANKS
    group["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "100m"
    return found


@contextmanager
def witness(cluster: Cluster, namespace: str) -> Iterator[Witness]:
    """Look on for a while."""
    found = Witness(cluster, namespace)
    try:
        yield found
    finally:
        found.stop()


def measure(cluster: Cluster, number: int) -> dict[str, float]:
    """Run the job once; returns seconds from `kubectl apply` to each milestone."""
    namespace = cluster.create_namespace(f"first-step-{number}")
    sample = SampleJob(cluster, namespace, "minimal")
    with witness(cluster, namespace) as seen:
        applied = sample.apply_sample(manifest=job(), program=PROGRAM)
        # Not by looking again and again, which would take a part of the cores that the ranks need.
        ended = ("--for=condition=Complete", f"--timeout={_SECONDS:.0f}s", "hvj/minimal")
        sample.kubectl("wait", *ended, timeout=_SECONDS + 10)
        log = sample.log("--timestamps")
    moments = seen.moments() | said_by_the_coordinator(log)
    ranks = [json.loads(line.partition("MOMENTS ")[2]) for line in log.splitlines() if "MOMENTS" in line]
    moments |= {name: max(rank[name] for rank in ranks) for name in ranks[0]}
    cluster.delete_namespace(namespace)
    return {name: moment - applied for name, moment in moments.items()}


def said_by_the_coordinator(log: str) -> dict[str, float]:
    """Return the moments that its log tells of."""
    milestones = {
        "coordinator listening": r"listening on",
        "agents registered": r"host \S+ registered",
        "mpirun started": rf"starting {RANKS} ranks",
    }
    found = {}
    for name, words in milestones.items():
        last = [line for line in log.splitlines() if re.search(words, line)][-1]
        found[name] = dt.datetime.fromisoformat(last.split()[0]).timestamp()
    return found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    with Cluster.start(nodes=3, name="first-step") as cluster, deployed_operator(cluster):
        measured = []
        for number in range(runs + 1):
            measured.append(measure(cluster, number))
            print(f"run {number}: {measured[-1]['first step']:.1f} s", flush=True)
            time.sleep(10)  # until the last run's pods have ended
    counted = measured[1:]
    medians = {name: statistics.median(run[name] for run in counted) for name in counted[0]}
    print(f"\nseconds after kubectl apply, median of {runs}, and all runs")
    for name, median in sorted(medians.items(), key=lambda item: item[1]):
        print(f"{name:32}{median:6.1f}   " + " ".join(f"{run[name]:5.1f}" for run in counted))


if __name__ == "__main__":
    main()
