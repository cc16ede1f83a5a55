"""All pods of a job get their places together or none does, whoever else wants them. Nothing is trained."""

import json
import time

import pytest
from cluster.pods import pod
from horovod_job import Job, idle_group
from kubernetes import client

pytestmark = pytest.mark.timeout(300)
PRODUCT, ON_EACH = "Gang-Test", 2


@pytest.fixture
def gpu_nodes(cluster, namespace):
    """Two nodes with two GPUs each: room that can be counted, whatever the machine is."""
    nodes = cluster.nodes[1:3]
    for node in nodes:
        node.label_gpu(PRODUCT, ON_EACH, 15360)
    return [node.name for node in nodes]


@pytest.fixture
def start(cluster, namespace, operator, gpu_nodes):
    """Create a job of so many workers with a GPU each."""

    def apply(name: str, workers: int) -> Job:
        job = Job(cluster, namespace, name)
        gpu = {"resources": {"requests": {"cpu": "10m"}, "limits": {"nvidia.com/gpu": "1"}}}
        group = idle_group("worker", workers, cluster.training_image, container=gpu)
        job.apply(group, scheduling={"gpuProducts": [PRODUCT]})
        return job

    return apply


def admitted(*jobs: Job) -> None:
    for job in jobs:
        job.wait(job.admitted, 90, f"{job.name} admitted")


def test_a_job_that_is_too_big_creates_no_pod_says_why_and_is_admitted_when_another_ends(start):
    first = start("first", 3)
    admitted(first)
    second = start("second", 2)
    second.wait(lambda: second.waits_because("NoPlace"), 60, "second waits")
    assert second.children() == []
    message = second.condition("Admitted")["message"]
    assert "worker needs 2 pods of cpu 10m, nvidia.com/gpu 1: 1 can start now" in message
    assert "too little is free on" in message
    first.delete()
    admitted(second)


def test_of_two_rivals_under_a_quota_that_fits_one_exactly_one_runs(cluster, namespace, operator):
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "one", "namespace": namespace},
            "spec": {"hard": {"pods": "3"}},
        }
    )
    rivals = [Job(cluster, namespace, name) for name in ("red", "blue")]
    red, blue = rivals
    red.wait(lambda: "hard" in red.kubectl("get", "quota", "one", "-o", "jsonpath={.status}"), 30, "counted")
    for rival in rivals:
        rival.apply(idle_group("worker", 2, cluster.training_image))
    red.wait(lambda: red.admitted() or blue.admitted(), 120, "one of them admitted")
    winner, loser = (red, blue) if red.admitted() else (blue, red)
    loser.wait(lambda: loser.waits_because("Refused"), 60, "the other one waits")
    assert "exceeded quota: one" in loser.condition("Admitted")["message"]
    assert winner.admitted()
    assert len(winner.pods()) == 3
    winner.delete()
    loser.wait(loser.admitted, 120, "the other one admitted")


def test_a_gang_whose_place_is_stolen_before_it_is_bound_leaves_no_pod_and_is_planned_anew(
    cluster, namespace, start, gpu_nodes, record_property
):
    held = time.monotonic()
    with cluster.no_binding():
        gang = start("gang", 3)
        gang.wait(lambda: len(gang.pods()) == 4, 60, "all pods planned and none bound")
        assert not any("nodeName" in each["spec"] for each in gang.pods().values())
        both = {"resources": {"limits": {"nvidia.com/gpu": str(ON_EACH)}}}
        thief = pod(namespace, "thief", cluster.pause_image, container=both, nodeName=gpu_nodes[0])
        cluster.apply(thief)
    released = time.monotonic()
    # If the scheduler binds a pod before it has seen the thief, the kubelet turns it away.
    why = {"PlaceTaken": "was not bound in time: 0/3 nodes are available", "PodFailed": "OutOfnvidia.com/gpu"}
    record_property("seconds_to_no_pod", round(gang.wait(lambda: not gang.pods(), 15, "no pod"), 1))
    gang.wait(lambda: any(gang.said(reason) for reason in why), 30, "told")
    if released - held > 5:  # a scheduler that was held for so long may not have given its reason yet
        why["PlaceTaken"] = "was not bound in time: "
    assert all(why[reason] in said for reason in why for said in gang.said(reason))
    gang.wait(lambda: gang.waits_because("NoPlace"), 60, "planned anew")
    assert f"too little is free on {gpu_nodes[0]}" in gang.condition("Admitted")["message"]
    gang.kubectl("delete", "pod", "thief", "--wait=false")
    admitted(gang)
    assert {name for name in gang.pods() if name.endswith("-1")} == set()


def test_a_gang_that_was_bound_before_its_place_was_stolen_leaves_no_pod_either(cluster, namespace, start):
    with cluster.no_binding():
        gang = start("gang", 3)
        gang.wait(lambda: len(gang.pods()) == 4, 60, "all pods planned and none bound")
        gpu = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
        # Which of the nodes gets two of them depends on what was free when they were planned.
        full = next(node for node in cluster.nodes if planned_on(gang).count(node.name) == ON_EACH)
        cluster.apply(pod(namespace, "thief", cluster.pause_image, container=gpu, nodeName=full.name))
        gang.kubectl("wait", "--for=condition=Ready", "pod/thief", "--timeout=60s", timeout=70)
        with full.held_kubelet():
            # As a scheduler does that has not heard of the thief yet; the kubelet has.
            for name, each in gang.pods().items():
                bind(cluster, namespace, name, pinned(each))
            gang.wait(gang.admitted, 20, "all pods bound, and none looked at by the node")
        gang.wait(lambda: not gang.pods(), 15, "no pod")
        assert any("OutOfnvidia.com/gpu" in said for said in gang.said("PodFailed"))
    gang.wait(lambda: gang.waits_because("NoPlace"), 60, "planned anew")
    gang.kubectl("delete", "pod", "thief", "--wait=false")
    admitted(gang)
    assert gang.status().get("restartCount", 0) == 0


def planned_on(gang: Job) -> list[str]:
    """Return the nodes that the planner chose for a gang's workers."""
    return [pinned(each) for name, each in gang.pods().items() if "-worker-" in name]


def pinned(planned: dict) -> str:
    """Return the node that the planner chose for a pod."""
    terms = planned["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]


def bind(cluster, namespace: str, name: str, node: str) -> None:
    target = client.V1ObjectReference(api_version="v1", kind="Node", name=node)
    binding = client.V1Binding(metadata=client.V1ObjectMeta(name=name), target=target)
    core = client.CoreV1Api(cluster.api)
    # The client cannot read what the server answers.
    core.create_namespaced_pod_binding(name, namespace, binding, _preload_content=False)


@pytest.fixture
def guard(cluster, namespace):
    """Keep workers of chosen namespaces off a node by a pod there; it has gone when the test has ended, as it
    may keep off those of the next one, too.
    """

    def keep_off(node: str, namespaces: dict) -> None:
        term = {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchExpressions": [{"key": "gradsieve.io/role", "operator": "Exists"}]},
            "namespaceSelector": namespaces,
        }
        alone = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        cluster.apply(pod(namespace, "guard", cluster.pause_image, nodeName=node, affinity=alone))
        cluster.wait_for_pod(namespace, "guard", "Running")

    yield keep_off
    cluster.kubectl("delete", "pod", "guard", "--namespace", namespace, "--ignore-not-found", timeout=70)


@pytest.mark.parametrize(
    ("chosen", "attempts"),
    [
        pytest.param({}, {"1"}, id="which the planner sees"),
        pytest.param(
            {"matchLabels": {"pod-security.kubernetes.io/enforce": "restricted"}},
            {"2", "3", "4"},
            id="which only the scheduler sees",
        ),
    ],
)
def test_a_job_runs_on_the_other_nodes_beside_a_pod_that_keeps_it_off_one(
    start, guard, gpu_nodes, chosen, attempts
):
    first, second = gpu_nodes  # of equal nodes, the planner takes them in this order
    guard(first, chosen)
    job = start("gang", ON_EACH)
    admitted(job)
    where = {name: each["spec"]["nodeName"] for name, each in job.pods().items()}
    assert {node for name, node in where.items() if "worker" in name} == {second}
    assert first not in where.values()
    assert {name.rpartition("-")[2] for name in where} <= attempts


def test_a_big_job_behind_a_stream_of_small_ones_starts_also_when_the_operator_restarts(start, operator):
    running = start("s0", 2)
    admitted(running)
    big = start("big", 4)
    big.wait(lambda: big.waits_because("NoPlace"), 60, "the big one waits")
    for overtaking in range(1, 4):
        small = start(f"s{overtaking}", 2)
        admitted(small)
        running.delete()
        big.wait(lambda count=overtaking: overtaken(big) == count, 60, f"overtaken {overtaking} times")
        running = small
        if overtaking == 2:
            operator.kill()
            operator.start()
    late = start("late", 2)
    late.wait(lambda: late.waits_because("NoPlace"), 60, "places are held")
    assert "Free places are held for" in late.condition("Admitted")["message"]
    running.delete()
    admitted(big)
    assert not late.admitted()
    big.delete()
    admitted(late)


def overtaken(job: Job) -> int:
    return int(json.loads(job.status().get("record", "{}")).get("overtaken", 0))
