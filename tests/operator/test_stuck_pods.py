"""Why a pod cannot start is said at once; once ranks have run, it is replaced when that lasts."""

from dataclasses import replace

import horovod_jobs as jobs
import pytest
from virtual_cluster import VirtualCluster

from gradsieve_operator.decide import read_pod
from gradsieve_operator.status import job_status

WORKER = "digits-worker-1-1"
BACK_OFF = 'Back-off pulling image "train:typo"'


def started() -> VirtualCluster:
    """A job whose pods are bound; no kubelet has started them."""
    it = VirtualCluster(jobs.body(), {"n0": 4})
    while it.progress.started is None:
        it.operate()
        it.pods = {name: replace(pod, node="n0") for name, pod in it.pods.items()}
    return it


def stuck(it: VirtualCluster, name: str) -> None:
    pod = replace(it.pods[name], node="n0", phase="Pending", reason="ImagePullBackOff", message=BACK_OFF)
    it.pods[name] = pod


def run(it: VirtualCluster) -> None:
    """Let the kubelets start all containers."""
    well = {"phase": "Running", "reason": "", "message": "", "ip": "10.0.0.9"}
    it.pods = {name: replace(pod, **well) for name, pod in it.pods.items()}


def condition(it: VirtualCluster, kind: str) -> dict:
    world = it.world()
    found = job_status(world, it.operate(), {}, {})["conditions"]
    return next(each for each in found if each["type"] == kind)


def stays_until_it_can_run(it: VirtualCluster, made: list[str]) -> None:
    for _ in range(300):
        it.now += 1
        it.operate()
    assert (it.made, it.progress.restarts) == (made, 0)
    run(it)
    assert condition(it, "Degraded")["status"] == "False"


@pytest.mark.parametrize("name", [WORKER, "digits-coordinator-1"])
def test_a_wrong_image_shows_before_any_rank_has_run(name):
    it = started()
    stuck(it, name)
    degraded = condition(it, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "PodStuck")
    assert degraded["message"] == f"{name} cannot start: ImagePullBackOff: {BACK_OFF}"


def test_it_is_not_replaced_before_any_rank_has_run_and_the_job_goes_on_once_it_can_be_pulled():
    it = started()
    made = list(it.made)
    stuck(it, WORKER)
    stays_until_it_can_run(it, made)
    it.settle()
    assert (it.progress.succeeded, it.progress.restarts) == (True, 0)


def test_what_is_stuck_for_two_minutes_after_ranks_have_run_is_replaced():
    it = started()
    it.length = 10**6
    while not it.progress.running:
        it.operate()
        it.tick()
    it.kill(WORKER)
    while "digits-worker-1-2" not in it.pods:
        it.operate()
    for second in range(119):
        stuck(it, "digits-worker-1-2")
        it.now += 1
        it.operate()
        assert "digits-worker-1-3" not in it.made, second
    stuck(it, "digits-worker-1-2")
    it.now += 2
    for _ in range(5):
        it.operate()
    assert "digits-worker-1-3" in it.made


@pytest.mark.parametrize(
    ("reason", "ip", "told"),
    [
        pytest.param("ContainerCreating", "", True, id="volume or image"),
        pytest.param("ContainerCreating", "10.0.0.9", True, id="image"),
        pytest.param("PodInitializing", "", True, id="volume before an init container"),
        pytest.param("PodInitializing", "10.0.0.9", False, id="init container at work"),
        pytest.param("", "", True, id="node has said nothing"),
    ],
)
def test_a_pod_whose_node_makes_no_container_for_two_minutes_is_named_and_stays(reason, ip, told):
    it = started()
    made = list(it.made)
    run(it)
    it.pods[WORKER] = replace(it.pods[WORKER], phase="Pending", reason=reason, ip=ip)
    it.now = it.pods[WORKER].created + 119
    assert condition(it, "Degraded")["status"] == "False"
    it.now += 1
    degraded = condition(it, "Degraded")
    assert (degraded["reason"] == "PodPreparing") == told
    if told:
        assert (
            f"{WORKER}: no container after 120 s; node n0 pulls an image, or waits for" in degraded["message"]
        )
        assert f"`kubectl describe pod {WORKER}`" in degraded["message"]
    stays_until_it_can_run(it, made)


def test_what_a_node_says_goes_before_what_it_does_not_say():
    it = started()
    it.pods[WORKER] = replace(it.pods[WORKER], phase="Pending", reason="ContainerCreating")
    stuck(it, "digits-coordinator-1")
    it.now += 1000
    assert condition(it, "Degraded")["reason"] == "PodStuck"


@pytest.mark.parametrize(
    ("reason", "told"), [("ImagePullBackOff", "PodStuck"), ("ContainerCreating", "PodPreparing")]
)
def test_it_is_said_without_a_break_also_when_what_all_pods_rely_on_is_looked_at(reason, told):
    it = started()
    it.pods[WORKER] = replace(it.pods[WORKER], phase="Pending", reason=reason)
    it.now += 1000
    said = [condition(it, "Degraded")["reason"]]
    # Once a minute the operator takes it that nothing is there, and makes it again.
    it.children.clear()
    while not it.children:
        said.append(condition(it, "Degraded")["reason"])
    assert len(said) > 1
    assert set(said) == {told}


def raw(*statuses: dict, init: tuple = ()) -> dict:
    containers = [{"name": "train"}, {"name": "a-sidecar"}]
    status = {"containerStatuses": list(statuses), "initContainerStatuses": list(init)}
    return {"metadata": {"name": WORKER}, "spec": {"containers": containers}, "status": status}


def waiting(name: str, reason: str, message: str = "") -> dict:
    return {"name": name, "state": {"waiting": {"reason": reason, "message": message}}}


def test_of_several_containers_the_one_that_trains_counts_whatever_their_names():
    sidecar = {"name": "a-sidecar", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    pod = read_pod(raw(sidecar, waiting("train", "ErrImagePull", "no such image")), "digits")
    assert (pod.reason, pod.message, pod.exit_code) == ("ErrImagePull", "no such image", None)


def test_a_pod_that_failed_without_any_container_was_turned_away_by_its_node():
    refusal = {"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected: too little"}
    assert read_pod({**raw(), "status": refusal}, "digits").turned_away
    ended = {"name": "train", "state": {"terminated": {"exitCode": 1}}}
    failed = {"phase": "Failed", "containerStatuses": [ended]}
    assert not read_pod({**raw(), "status": failed}, "digits").turned_away
    assert not read_pod({**raw(), "status": {"phase": "Pending"}}, "digits").turned_away


def test_an_init_container_that_cannot_start_is_what_the_pod_waits_for():
    ready = {"name": "one", "state": {"terminated": {"exitCode": 0}}}
    init = (ready, waiting("two", "ErrImagePull", "no such image"), waiting("three", "PodInitializing"))
    pod = read_pod(raw(waiting("train", "PodInitializing"), init=init), "digits")
    assert (pod.reason, pod.message) == ("ErrImagePull", "no such image")
    pod = read_pod(
        raw(waiting("train", "PodInitializing"), init=(ready, {"name": "two", "state": {}})), "digits"
    )
    assert pod.reason == "PodInitializing"
