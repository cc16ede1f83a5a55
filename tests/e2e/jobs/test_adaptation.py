"""A job that trains by what is measured: its ranks' mode follows a node that becomes slow and recovers."""

import re
import uuid
from contextlib import contextmanager

import pytest
from cluster.external import ExternalCluster
from horovod_job import Job, python_group

pytestmark = pytest.mark.timeout(600)
SLOW_CORES = 0.25
MODEL = """
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
optimizer = gradsieve_hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01),
    model.named_parameters(),
    gradsieve_hvd.Compression.topk(density=0.01, value_dtype="float16", timeout_seconds=120),
    mode="auto", {options}
)

def step(batch):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(samples[batch]), labels[batch])
    loss.backward()
    optimizer.step()
    gradsieve_hvd.report(loss=loss)
"""
DEALT = (
    MODEL.format(options="")
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
    MODEL.format(options="parameter_server=True, server_ranks=[0]")
    + """
looked = time.monotonic()
for _ in itertools.count():
    step(torch.randint(len(samples), (256,)))
    if time.monotonic() - looked > 10:
        with optimizer.consistent():
            looked = time.monotonic()
"""
)


@contextmanager
def training(cluster, program):
    if isinstance(cluster, ExternalCluster):
        pytest.skip("throttling a node needs the harness's own cluster")
    namespace = cluster.create_namespace(f"e2e-{uuid.uuid4().hex[:8]}")
    job = Job(cluster, namespace)
    job.apply(
        python_group(cluster, namespace, 2, program),
        scheduling={"placement": "Spread"},
        compression={"algorithm": "TopK", "densityPermille": 10},
        parallelism={"mode": "Auto"},
        adaptation={"enabled": True, "intervalSeconds": 15, "cooldownSeconds": 30, "minSamples": 5},
    )
    job.wait(lambda: followed(job) == "Synchronous", 150, "a training that can change its mode")
    try:
        yield job
    finally:
        job.kubectl("delete", "hvj", job.name, "--wait=false")
        cluster.delete_namespace(namespace)


def plan(job: Job) -> dict:
    return job.status().get("plan") or {}


def followed(job: Job) -> str:
    """Return the mode that ranks are told and have acknowledged; empty for none."""
    now = plan(job)
    told = now.get("appliedGeneration", 0) == now.get("generation", -1)
    return now["mode"] if told else ""


def held(job: Job) -> tuple[str, str]:
    found = {each["type"]: each for each in job.status().get("conditions") or ()}
    return found["AdaptationHeld"]["status"], found["AdaptationHeld"]["reason"]


@contextmanager
def throttled(cluster, job):
    """Within, the node of rank 1's pod has a quarter of a core; not before even ranks were measured."""
    pod = next(pod for pod in job.pods().values() if pod["spec"]["hostname"] == "worker-1")
    node = next(node for node in cluster.nodes if node.name == pod["spec"]["nodeName"])
    job.wait(lambda: held(job) == ("False", "AsGoodAsItGets"), 120, "even ranks measured")
    node.throttle_cpu(SLOW_CORES)
    try:
        yield
    finally:
        node.throttle_cpu(None)


def require_slow_tail(job, mode):
    slow = plan(job)
    assert slow["reason"] == "SlowTail"
    assert "the slowest rank on worker-1" in slow["evidence"]
    assert {group["mode"] for group in job.status()["workerGroups"]} == {mode}


def modes_followed(job, rank):
    """Return the modes that a rank has said it follows, in their order."""
    said = re.findall(r"rank (\d): plan \d+ \(.*mode (\w+)", job.log())
    return [mode for number, mode in said if int(number) == rank]


def test_adaptation_gives_a_throttled_node_a_smaller_share_and_takes_it_back(
    cluster, operator, record_property
):
    """Plan 1 may have told the density only, before the program had said that it can change its mode."""
    with training(cluster, DEALT) as job:
        with throttled(cluster, job):
            first = plan(job)["generation"]
            took = job.wait(lambda: followed(job) == "Balanced", 150, "shares by speed")
            record_property("seconds_to_balanced", round(took, 1))
            require_slow_tail(job, "Balanced")
        took = job.wait(lambda: followed(job) == "Synchronous", 150, "equal shares again")
        record_property("seconds_to_synchronous", round(took, 1))
        assert plan(job)["reason"] == "EvenRanks"
        # Two changes on a quiet machine; what else runs on this one may make ranks uneven, too.
        assert plan(job)["generation"] >= first + 2
        for rank in range(2):
            assert modes_followed(job, rank)[-2:] == ["Balanced", "Synchronous"]


def test_adaptation_lets_ranks_step_at_their_own_pace_beside_a_throttled_node_and_ends_that(
    cluster, operator, record_property
):
    """What follows is the operator's to know: with a server of one core exchanging may take so much that it
    tries local steps before the node recovers."""
    with training(cluster, SERVED) as job:
        with throttled(cluster, job):
            took = job.wait(lambda: followed(job) == "Adaptive", 150, "ranks at their own pace")
            record_property("seconds_to_adaptive", round(took, 1))
            require_slow_tail(job, "Adaptive")
            assert job.status()["telemetry"]["step"] > 0
        took = job.wait(lambda: followed(job) in ("Synchronous", "Local"), 180, "a mode without a server")
        record_property("seconds_without_a_server", round(took, 1))
        for rank in range(2):
            assert "Adaptive" in modes_followed(job, rank)
            assert modes_followed(job, rank)[-1] in ("Synchronous", "Local")
