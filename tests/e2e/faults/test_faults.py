"""Whatever happens to the cluster, jobs become what they were to become, and no invariant is broken."""

import os
import time
from functools import partial
from http import HTTPStatus

import pytest
from cluster_faults import all_faults
from history import bound, living
from soak import Soak, another_seed
from watched_job import WatchedJob

pytestmark = pytest.mark.timeout(600)
MINUTES = 300.0
FAULT_SECONDS, SOAK_SECONDS = 8, 180
SEED = "GRADSIEVE_SOAK_SEED"


@pytest.fixture
def job(cluster, onlooker) -> WatchedJob:
    """A job without ranks that is not there yet."""
    return WatchedJob(cluster, onlooker, "waiting")


def at(job: WatchedJob, host: str) -> dict:
    """Return the pod that fills a place."""
    return next(pod for pod in job.living() if pod["spec"]["hostname"] == host)


def restarts(job: WatchedJob) -> int:
    return int(job.body["status"].get("restartCount") or 0)


def pods_and_their_starts(job: WatchedJob) -> dict[str, tuple[str, list[str], int]]:
    """Return UID, containers, and how often these were started again, of each pod by its name."""
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            sorted(each["containerID"] for each in pod["status"]["containerStatuses"]),
            sum(each["restartCount"] for each in pod["status"]["containerStatuses"]),
        )
        for pod in job.living()
    }


def test_ranks_train_on_and_end_while_api_server_and_storage_are_away(cluster, replicas, onlooker):
    long = WatchedJob(cluster, onlooker, "long", seconds=40)
    short = WatchedJob(cluster, onlooker, "short", seconds=12)
    ended = replicas.restarts
    for job, workers in ((long, 2), (short, 1)):
        job.live(job.begin(workers))
    long.wait("Running", lambda: long.says("Running"))
    short.wait("begun", lambda: short.says("Running") or short.says("Complete"))
    with onlooker.disturbed("the API server is killed, and etcd stands still", 20):
        cluster.restart_api_server()
        with cluster.no_storage():
            time.sleep(20)
    for job in (short, long):
        job.live(job.end())
        assert restarts(job) == 0
        assert {pod["metadata"]["name"].rpartition("-")[2] for pod in job.pods()} == {"1"}
    assert replicas.restarts > ended, "a leader that could not renew its Lease went on"
    replicas.wait_for_leader(30)


@pytest.mark.parametrize("off", [MINUTES, -MINUTES], ids=["ahead", "behind"])
def test_clocks_that_are_minutes_off_change_nothing(cluster, replicas, onlooker, job, off):
    with replicas.clocks_off(off):
        time.sleep(1.5)  # until it is noticed
        with cluster.no_binding():
            # Shorter than the clocks are off: an operator that counted by its own would end the job.
            job.live(job.begin(1, runPolicy={"activeDeadlineSeconds": int(MINUTES) - 60}))
            job.wait("two pods", lambda: len(job.pods()) == 2, 30)
            time.sleep(3)
        job.live(job.settle(), 30)
        names = [pod["metadata"]["name"] for pod in job.pods()]
        assert names == ["waiting-coordinator-1", "waiting-worker-0-1"]
        job.live(job.lose(at(job, "worker-0")), 30)
        assert restarts(job) == 1
    job.live(job.end(), 30)


def test_a_leader_that_stood_still_does_nothing_beside_its_successor(
    replicas, onlooker, job, record_property
):
    job.live(job.begin(1))
    job.live(job.settle())
    leader, ended = replicas.wait_for_leader(60), replicas.restarts
    with onlooker.disturbed("the leader stands still", 0), replicas.held(leader):
        steps = job.lose(at(job, "worker-0"))
        next(steps)
        began = time.monotonic()
        replicas.wait_for_leader(60, other_than=leader)
        record_property("seconds_to_successor", round(time.monotonic() - began, 1))
        job.live(steps, 60)
    job.wait("the old leader ended", lambda: replicas.restarts > ended, 60)
    job.live(job.end(), 60)
    assert restarts(job) == 1


def test_a_leader_that_is_killed_between_two_incarnations_leaves_the_second_to_its_successor(
    cluster, replicas, onlooker, job, record_property
):
    job.live(job.begin(2))
    job.live(job.settle())
    leader = replicas.wait_for_leader(60)
    with cluster.no_binding():
        steps = job.lose(at(job, "worker-0"))
        next(steps)
        job.wait("a new pod", lambda: not all(map(bound, job.living())), 30)
        new = at(job, "worker-0")
        began = time.monotonic()
        with onlooker.disturbed("the leader is killed", 20), replicas.without(leader):
            replicas.wait_for_leader(60, other_than=leader)
        record_property("seconds_to_successor", round(time.monotonic() - began, 1))
    job.live(steps, 60)
    assert at(job, "worker-0")["metadata"]["uid"] == new["metadata"]["uid"]
    assert restarts(job) == 1
    job.live(job.end(), 60)


def test_requests_that_are_slow_refused_or_broken_off_delay_and_no_more(
    proxy, replicas, onlooker, job, record_property
):
    """Each fault meets a job that has just lost a pod."""
    job.live(job.begin(2))
    job.live(job.settle())
    faults = {
        "slow": lambda: proxy.slow(0.5),
        "429": lambda: proxy.refusing(HTTPStatus.TOO_MANY_REQUESTS, 0.5),
        "500": lambda: proxy.refusing(HTTPStatus.INTERNAL_SERVER_ERROR, 0.5),
    }
    for count, (name, fault) in enumerate(faults.items(), 1):
        steps, before = job.lose(at(job, "worker-1")), proxy.troubled
        with onlooker.disturbed(name, 30), fault():
            next(steps)
            began = time.monotonic()
            time.sleep(FAULT_SECONDS)
        job.live(steps, 120)
        record_property(f"seconds_{name}", round(time.monotonic() - began, 1))
        # Only then: what is lost before it was taken in belongs to the restart that made it.
        job.wait("nothing missing", lambda: not job.says("Degraded"), 60)
        assert restarts(job) == count
        assert proxy.troubled > before
    before = proxy.troubled
    proxy.cut_watches()
    assert proxy.troubled > before
    job.live(job.lose(at(job, "worker-0")), 60)
    job.live(job.end(), 60)


def test_a_copy_of_a_pod_that_trains_is_never_let_in_and_goes(cluster, replicas, onlooker, record_property):
    training = WatchedJob(cluster, onlooker, "train", seconds=15)
    training.live(training.begin(1))
    training.wait("Running", lambda: training.says("Running"))
    for number in (0, 10**7):
        began = time.monotonic()
        training.live(training.copy(at(training, "worker-0"), number), 10)
        record_property(f"seconds_to_go_{number}", round(time.monotonic() - began, 1))
    training.live(training.end())
    assert restarts(training) == 0


def test_a_job_that_has_ended_stays_as_it_is_whether_or_not_it_is_suspended_then(replicas, job):
    job.live(job.begin(1))
    job.live(job.settle())
    job.live(job.end())
    job.wait("workers gone", lambda: len(job.pods()) == 1, 60)
    before = [pod["metadata"]["uid"] for pod in job.pods()]
    job.live(job.suspend(), 60)
    assert job.says("Complete")
    assert [pod["metadata"]["uid"] for pod in job.pods()] == before


def test_pods_run_on_while_kubelets_restart_and_a_node_registers_again(cluster, replicas, onlooker, job):
    job.live(job.begin(2, failures=0, scheduling={"placement": "Spread"}))
    job.live(job.settle())
    before = pods_and_their_starts(job)
    with onlooker.disturbed("kubelets are restarted", 15):
        for node in cluster.nodes:
            node.stop_kubelet()
            node.start_kubelet()
    node = next(node for node in cluster.nodes if node.name == at(job, "worker-1")["spec"]["nodeName"])
    with onlooker.disturbed("a node registers again", 15):
        node.stop_kubelet()
        cluster.kubectl("delete", "node", node.name)
        node.start_kubelet()
        for each in cluster.nodes:
            cluster.wait_until_ready(each.name, 60)
    job.live(job.settle(), 30)
    assert pods_and_their_starts(job) == before
    assert restarts(job) == 0
    job.live(job.end(), 60)


def test_what_ran_on_a_node_that_is_deleted_is_replaced_elsewhere_and_is_no_failure(
    cluster, replicas, onlooker, job
):
    job.live(job.begin(2, failures=0, scheduling={"placement": "Spread"}))
    job.live(job.settle())
    lost = at(job, "worker-1")
    node = next(node for node in cluster.nodes if node.name == lost["spec"]["nodeName"])
    with onlooker.disturbed("a node is deleted", 30):
        node.stop_kubelet()
        cluster.kubectl("delete", "node", node.name)
        job.wait("replaced", lambda: at_another(job, lost), 150)
        job.live(job.settle(), 60)
        node.start_kubelet()
        cluster.wait_until_ready(node.name, 60)
    assert restarts(job) == 1
    job.live(job.end())


def at_another(job: WatchedJob, lost: dict) -> bool:
    """Whether the place of a pod is filled by another one on another node."""
    pods = [pod for pod in job.pods() if pod["spec"]["hostname"] == lost["spec"]["hostname"] and living(pod)]
    return bool(pods) and all(
        pod["spec"].get("nodeName") not in (None, lost["spec"]["nodeName"]) for pod in pods
    )


@pytest.mark.sole_training
def test_jobs_that_live_at_random_survive_faults_at_random(
    cluster, proxy, replicas, onlooker, record_property, capsys
):
    """The short form of `make soak`; its seed is shown among what was measured, too."""
    seed = int(os.environ.get(SEED) or another_seed())
    record_property("seed", seed)
    with capsys.disabled():
        print(f"\nwith {SEED} the same again:")
        soak = Soak(cluster, onlooker, seed, lambda line: print(line, flush=True))
        soak.run(partial(all_faults, cluster, proxy, replicas), SOAK_SECONDS)
    record_property("jobs", sum(soak.jobs.values()))
    record_property("faults", sum(soak.faults.values()))
    assert len(soak.faults) >= 3
    assert sum(soak.jobs.values()) >= 5
