"""A coordinator that has ended beside a sidecar, or does not answer any more, does not hold up its job."""

import copy

import horovod_jobs as jobs
import pytest
from operator_in_memory import JOB, bind, conditions, running, until
from virtual_cluster import VirtualCluster

from gradsieve_operator import contract
from gradsieve_operator.cluster.silence_tracker import SilenceTracker
from gradsieve_operator.decide import members, read_pod
from gradsieve_operator.status import job_status

LEADER, WORKER = "digits-coordinator-1", "digits-worker-1-1"
SIDECAR = {"name": "mesh", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}


def training(**policy) -> VirtualCluster:
    policy = {"backoffLimit": 3, **policy}
    it = VirtualCluster(jobs.body(runPolicy=policy), {"n0": 4, "n1": 4}, length=30)
    while not it.progress.running:
        if it.operate().requeue_after != 0.0:
            it.tick()
    return it


def condition(it: VirtualCluster, kind: str) -> dict:
    world = it.world()
    found = job_status(world, it.operate(), {}, {})["conditions"]
    return next(each for each in found if each["type"] == kind)


def read(*names: str, command=contract.COORDINATOR_COMMAND, ours="train", **state) -> object:
    """Return a Running pod with these containers, of which ``ours`` runs our command and is in ``state``."""
    containers = [{"name": name, **({"command": list(command)} if name == ours else {})} for name in names]
    statuses = [SIDECAR, {"name": ours, "state": state}]
    return read_pod(
        {
            "metadata": {"name": LEADER},
            "spec": {"containers": containers},
            "status": {"phase": "Running", "containerStatuses": statuses},
        },
        "digits",
    )


@pytest.mark.parametrize("names", [("train", "mesh"), ("mesh", "train")])
@pytest.mark.parametrize("command", [contract.COORDINATOR_COMMAND, contract.AGENT_COMMAND])
def test_a_pod_is_over_with_the_container_that_runs_our_command_wherever_that_stands(names, command):
    ended = read(*names, command=command, terminated={"exitCode": 3, "message": "rank 1 failed"})
    assert (ended.over, ended.ended_well, ended.occupies) == (True, False, True)
    assert (ended.exit_code, ended.message) == (3, "rank 1 failed")
    assert read(*names, command=command, terminated={"exitCode": 0}).ended_well
    assert not read(*names, command=command, running={}).over


def test_a_coordinator_that_failed_beside_a_sidecar_is_replaced_as_a_failed_one_and_its_pod_goes():
    it = training()
    it.kill(LEADER, phase="Running", exit_code=1, reason="Error", message="rank 0 ended with status 1")
    degraded = condition(it, "Degraded")
    assert degraded["message"] == f"{LEADER} ended with status 1: rank 0 ended with status 1"
    assert it.progress.restarts == 1
    it.settle()
    assert (it.progress.succeeded, it.progress.restarts) == (True, 1)
    assert "digits-coordinator-2" in it.made
    assert LEADER not in it.pods


def test_a_coordinator_that_ended_well_beside_a_sidecar_ends_its_job():
    it = training()
    it.kill(LEADER, phase="Running", exit_code=0)
    it.settle()
    assert (it.progress.succeeded, it.progress.restarts) == (True, 0)
    assert it.alive() == set()


def test_an_agent_that_failed_beside_a_sidecar_is_replaced_and_its_pod_goes():
    it = training()
    it.kill(WORKER, phase="Running", exit_code=1)
    it.settle()
    assert (it.progress.succeeded, it.progress.restarts) == (True, 1)
    assert "digits-worker-1-2" in it.made
    assert WORKER not in it.pods


@pytest.mark.parametrize(("seconds", "limit"), [(5, 60), (600, 600)])
def test_a_coordinator_that_does_not_answer_is_replaced_when_that_lasts(seconds, limit):
    it = training(nodeLostSeconds=seconds)
    it.deaf, it.silence = True, limit - 1.0
    assert condition(it, "Running")["status"] == "True"
    assert LEADER in it.alive()
    it.silence = float(limit)
    said = f"{LEADER} runs, but has not answered for {limit} s"
    degraded = condition(it, "Degraded")
    assert (degraded["reason"], degraded["message"]) == ("CoordinatorSilent", said)
    assert it.progress.restarts == 1
    assert LEADER not in it.alive()
    it.deaf, it.silence = False, 0.0
    it.settle()
    assert (it.progress.succeeded, it.progress.restarts) == (True, 1)
    assert "digits-coordinator-2" in it.made


def test_a_job_that_shrinks_says_that_its_silent_coordinator_does_not_know_it_yet():
    it = training()
    it.body["spec"]["workerGroups"][0]["replicas"] = 1
    it.deaf, it.silence = True, 14.0
    it.live(2)
    degraded = condition(it, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "CoordinatorSilent")
    assert degraded["message"].startswith(f"{WORKER}: not deleted before")
    assert WORKER in it.alive()
    it.deaf, it.silence = False, 0.0
    it.live(2)
    assert condition(it, "Degraded")["status"] == "False"
    assert WORKER not in it.alive()


def test_nobody_knows_whether_ranks_train_when_their_coordinator_has_not_answered_for_long():
    it = training()
    it.deaf, it.silence = True, 60.0
    running = condition(it, "Running")
    assert (running["status"], running["reason"]) == ("Unknown", "CoordinatorSilent")


async def test_a_coordinator_that_runs_and_cannot_be_reached_is_replaced(server, port, monkeypatch):
    monkeypatch.setattr(contract, "COORDINATOR_PORT", port)
    monkeypatch.setattr(members, "SILENT_SECONDS", 1.0)
    server.objects[JOB, "research", "digits"] = jobs.body(runPolicy={"nodeLostSeconds": 1})
    async with running() as operator:
        await until(lambda: len(server.all("v1/pods")) == 3)
        bind(server)
        await until(lambda: conditions(server)["Admitted"]["reason"] == "Placed")
        leader = server.objects["v1/pods", "research", LEADER]
        leader.patch({"status": {"phase": "Running", "podIP": "127.0.0.1"}})
        operator.queue.add(("research", "digits"))
        await until(lambda: "digits-coordinator-2" in server.all("v1/pods"))
    said = [event["message"] for event in server.all("v1/events").values()]
    assert f"{LEADER} runs, but has not answered for 1 s" in said


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def miss(
    tracker: SilenceTracker, clock: Clock, *uids: str, seconds: int, could_answer: bool = True
) -> list[float]:
    """Let all of ``uids`` leave calls unanswered for so long; returns for how long each was silent then."""
    silences = []
    for _ in range(seconds // 5 + 1):
        silences = [tracker.missed(uid, could_answer=could_answer)[0] for uid in uids]
        clock.now += 5.0
    return silences


def test_silence_is_counted_from_the_first_call_without_an_answer_to_the_last(clock):
    tracker = SilenceTracker(clock)
    assert miss(tracker, clock, "a", seconds=60) == [60.0]
    tracker.answered("a")
    assert tracker.missed("a", could_answer=True) == (0.0, 0.0)


def test_one_call_counts_little_however_long_ago_the_one_before_was(clock):
    tracker = SilenceTracker(clock)
    tracker.missed("a", could_answer=True)
    clock.now += 500.0
    assert tracker.missed("a", could_answer=True) == (10.0, 500.0)


def test_a_coordinator_is_not_silent_while_it_could_not_answer(clock):
    tracker = SilenceTracker(clock)
    assert miss(tracker, clock, "a", seconds=300, could_answer=False) == [0.0]
    assert miss(tracker, clock, "a", seconds=20) == [25.0]


def test_an_operator_that_hears_none_of_several_coordinators_is_cut_off_itself(clock):
    tracker = SilenceTracker(clock)
    tracker.answered("a")
    tracker.answered("b")
    assert max(miss(tracker, clock, "a", "b", seconds=3600)) < 60.0
    assert tracker.missed("a", could_answer=True)[1] > 3600.0


def test_a_coordinator_is_silent_when_others_answer(clock):
    tracker = SilenceTracker(clock)
    for _ in range(13):
        silence, _ = tracker.missed("a", could_answer=True)
        tracker.missed("hung too", could_answer=True)
        tracker.answered("b")
        clock.now += 5.0
    assert silence == 60.0


async def test_a_new_leader_lets_itself_in_before_a_coordinator_that_it_cannot_reach_counts_as_silent(
    server, port, monkeypatch
):
    monkeypatch.setattr(contract, "COORDINATOR_PORT", port)
    policy = ("networking.k8s.io/v1/networkpolicies", "research", "digits")
    server.objects[JOB, "research", "digits"] = jobs.body(runPolicy={"nodeLostSeconds": 1})
    async with running():
        await until(lambda: len(server.all("v1/pods")) == 3)
        bind(server)
        await until(lambda: conditions(server)["Admitted"]["reason"] == "Placed")
    leader = server.objects["v1/pods", "research", LEADER]
    leader.patch({"status": {"phase": "Running", "podIP": "127.0.0.1"}})
    own = copy.deepcopy(server.objects[policy].raw["spec"])
    server.objects[policy].patch({"spec": {"ingress": []}})
    assert server.objects[policy].raw["spec"] != own
    async with running():
        await until(lambda: server.objects[policy].raw["spec"] == own)
        assert "digits-coordinator-2" not in server.all("v1/pods")
    said = [event["message"] for event in server.all("v1/events").values()]
    assert not any("has not answered" in each for each in said)
