"""A job that trains by what is measured: its ranks' mode follows a node that becomes slow and recovers."""

import re
import uuid

import pytest
from cluster.external import ExternalCluster
from horovod_job import Job, python_group

pytestmark = pytest.mark.timeout(600)
SLOW_CORES = 0.25
PROGRAM = """
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
    mode="auto",
)
sampler = gradsieve_hvd.DynamicSampler(range(len(samples)), optimizer, batch_size=256)
for epoch in range(10**6):
    sampler.set_epoch(epoch)
    for batch in sampler:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(samples[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        gradsieve_hvd.report(loss=loss)
"""


@pytest.fixture(scope="module")
def training(cluster, operator):
    if isinstance(cluster, ExternalCluster):
        pytest.skip("throttling a node needs the harness's own cluster")
    namespace = cluster.create_namespace(f"e2e-{uuid.uuid4().hex[:8]}")
    job = Job(cluster, namespace)
    job.apply(
        python_group(cluster, namespace, 2, PROGRAM),
        scheduling={"placement": "Spread"},
        compression={"algorithm": "TopK", "densityPermille": 10},
        parallelism={"mode": "Auto"},
        adaptation={"enabled": True, "intervalSeconds": 15, "cooldownSeconds": 30, "minSamples": 5},
    )
    job.wait(lambda: followed(job) == "Synchronous", 150, "a training that can change its mode")
    yield job
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


def test_adaptation_gives_a_throttled_node_a_smaller_share_and_takes_it_back(
    cluster, training, record_property
):
    """Plan 1 may have told the density only, before the program had said that it can change its mode."""
    pod = next(pod for pod in training.pods().values() if pod["spec"]["hostname"] == "worker-1")
    node = next(node for node in cluster.nodes if node.name == pod["spec"]["nodeName"])
    training.wait(lambda: held(training) == ("False", "AsGoodAsItGets"), 120, "even ranks measured")
    first = plan(training)["generation"]
    node.throttle_cpu(SLOW_CORES)
    try:
        took = training.wait(lambda: followed(training) == "Balanced", 150, "shares by speed")
        record_property("seconds_to_balanced", round(took, 1))
        slow = plan(training)
        assert slow["reason"] == "SlowTail"
        assert "the slowest rank on worker-1" in slow["evidence"]
        assert {group["mode"] for group in training.status()["workerGroups"]} == {"Balanced"}
    finally:
        node.throttle_cpu(None)
    took = training.wait(lambda: followed(training) == "Synchronous", 150, "equal shares again")
    record_property("seconds_to_synchronous", round(took, 1))
    assert plan(training)["reason"] == "EvenRanks"
    # Two changes on a quiet machine; what else runs on this one may make ranks uneven, too.
    assert plan(training)["generation"] >= first + 2
    said = re.findall(r"rank (\d): plan (\d+) \(.*mode (\w+)", training.log())
    for rank in "01":
        assert [mode for number, _, mode in said if number == rank][-2:] == ["Balanced", "Synchronous"]
