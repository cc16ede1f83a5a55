"""Jobs whose plan follows what is measured: their programs, and what is seen of their plans."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cluster.external import ExternalCluster
from horovod_job import Job, python_group

SLOW_CORES = 0.25
_MODEL = """
import itertools, time
import horovod.torch as hvd, torch
from torch import nn
from torch.nn import functional as F
import gradsieve_hvd
torch.set_num_threads(1)
hvd.init()
torch.manual_seed(0)
samples = torch.randn(8192, 256)
labels = samples[:, :10].argmax(1)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = {optimizer}

def step(batch):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(samples[batch]), labels[batch])
    loss.backward()
    optimizer.step()
    gradsieve_hvd.report(loss=loss)
"""
_OURS = """gradsieve_hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01),
    model.named_parameters(),
    gradsieve_hvd.Compression.topk(density=0.01, value_dtype="float16", timeout_seconds=120),
    mode="auto", {options}
)"""
_DROP_IN = """hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01),
    named_parameters=model.named_parameters(),
    compression=gradsieve_hvd.Compression.topk(density=0.01, value_dtype="float16", timeout_seconds=120),
)"""
DEALT = (
    _MODEL.format(optimizer=_OURS.format(options=""))
    + """
sampler = gradsieve_hvd.DynamicSampler(range(len(samples)), optimizer, batch_size=256)
for epoch in range(10**6):
    sampler.set_epoch(epoch)
    for batch in sampler:
        step(batch)
"""
)
# By time: a rank that is slow is not waited for until it has taken as many steps as the others.
SERVED = (
    _MODEL.format(optimizer=_OURS.format(options="parameter_server=True, server_ranks=[0]"))
    + """
looked = time.monotonic()
for _ in itertools.count():
    step(torch.randint(len(samples), (256,)))
    if time.monotonic() - looked > 10:
        with optimizer.consistent():
            looked = time.monotonic()
"""
)
STOCK = (
    _MODEL.format(optimizer=_DROP_IN)
    + """
while True:
    step(torch.randint(len(samples), (256,)))
"""
)


@contextmanager
def training(cluster: Any, program: str, *, adapts: bool = True, **compression: Any) -> Iterator[Job]:
    """Let two ranks on two nodes train; within, they follow their first plan.

    Args:
        cluster: with nodes that can be slowed down.
        program: of the ranks.
        adapts: whether the operator may change mode and density.
        compression: besides TopK and a density of 10 permille.
    """
    if isinstance(cluster, ExternalCluster):
        pytest.skip("slowing a node down needs the harness's own cluster")
    namespace = cluster.create_namespace(f"e2e-{uuid.uuid4().hex[:8]}")
    job = Job(cluster, namespace)
    try:
        # What other tests do at the time would make steps as uneven as a slow node does.
        with cluster.pods_first():
            job.apply(
                python_group(cluster, namespace, 2, program),
                scheduling={"placement": "Spread"},
                compression={"algorithm": "TopK", "densityPermille": 10, **compression},
                parallelism={"mode": "Auto" if adapts else "Synchronous"},
                adaptation={
                    "enabled": adapts,
                    "intervalSeconds": 15,
                    "cooldownSeconds": 20,
                    "minSamples": 5,
                },
            )
            job.wait(lambda: followed(job) == "Synchronous", 150, "a training that follows its plan")
            yield job
    finally:
        job.kubectl("delete", "hvj", job.name, "--wait=false")
        cluster.delete_namespace(namespace)


def plan(job: Job) -> dict[str, Any]:
    """Return what the status says of the plan."""
    return job.status().get("plan") or {}


def follows(now: dict[str, Any]) -> bool:
    """Whether ranks have acknowledged that plan."""
    return now.get("appliedGeneration", 0) == now.get("generation", -1)


def followed(job: Job) -> str:
    """Return the mode that ranks are told and have acknowledged; empty for none."""
    now = plan(job)
    return now["mode"] if follows(now) else ""


def held(job: Job) -> tuple[str, str]:
    """Return status and reason of what keeps the plan as it is."""
    found = job.condition("AdaptationHeld")
    return found["status"], found["reason"]


def node_of(cluster: Any, job: Job, host: str) -> Any:
    """Return the node of a worker."""
    pod = next(pod for pod in job.pods().values() if pod["spec"]["hostname"] == host)
    return next(node for node in cluster.nodes if node.name == pod["spec"]["nodeName"])


def wait_for_even_ranks(job: Job) -> None:
    """Wait until the operator has measured ranks and found no better plan."""
    job.wait(lambda: held(job) == ("False", "AsGoodAsItGets"), 120, "even ranks measured")


@contextmanager
def limited(cluster: Any, job: Job) -> Iterator[None]:
    """Within, the container of worker-1 has a limit of a quarter of a core; its node has none."""
    wait_for_even_ranks(job)
    node = node_of(cluster, job, "worker-1")
    uid = next(pod for pod in job.pods().values() if pod["spec"]["hostname"] == "worker-1")["metadata"]["uid"]
    node.limit_containers(uid, SLOW_CORES)
    try:
        yield
    finally:
        node.limit_containers(uid, None)


@contextmanager
def throttled(cluster: Any, job: Job) -> Iterator[None]:
    """Within, the node of worker-1 has a quarter of a core."""
    node = node_of(cluster, job, "worker-1")
    wait_for_even_ranks(job)
    node.throttle_cpu(SLOW_CORES)
    try:
        yield
    finally:
        node.throttle_cpu(None)


def modes_followed(job: Job, rank: int) -> list[str]:
    """Return the modes that a rank has said it follows, in their order."""
    said = re.findall(r"rank (\d): plan \d+ \(.*mode (\w+)", job.log())
    return [mode for number, mode in said if int(number) == rank]
