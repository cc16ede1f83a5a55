"""A job's life in a virtual cluster: whatever happens in whichever order, the same end."""

import contextlib

import horovod_jobs as jobs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from virtual_cluster import Crash, VirtualCluster

from gradsieve_operator.decide import Record

WORKER_1 = {"digits-worker-1-1", "digits-worker-1-2"}


def cluster(*groups, nodes=(2, 2, 2), length=5, **spec) -> VirtualCluster:
    spec.setdefault("runPolicy", {"backoffLimit": 1000, "nodeLostSeconds": 5})
    capacity = {f"n{index}": size for index, size in enumerate(nodes)}
    return VirtualCluster(jobs.body(*groups, **spec), capacity, length=length)


def run_until(it: VirtualCluster, state, seconds: int = 120) -> None:
    for _ in range(seconds * 4):
        if state(it):
            return
        if it.operate().requeue_after != 0.0:
            it.tick()
    raise AssertionError(f"not reached: {it.said[-1]}")


def training(it: VirtualCluster) -> bool:
    return it.progress.running


def test_an_undisturbed_job_makes_each_pod_once_and_succeeds():
    it = cluster(jobs.group("a", 2), jobs.group("b", 1))
    it.settle()
    assert it.progress.succeeded
    assert it.progress.restarts == 0
    assert it.made == ["digits-coordinator-1", "digits-a-0-1", "digits-a-1-1", "digits-b-0-1"]
    assert it.rosters == [(1, ("a-0", "a-1", "b-0"))]


def test_what_runs_is_deleted_at_the_end_and_what_has_ended_stays():
    it = cluster()
    it.settle()
    assert set(it.pods) == {"digits-coordinator-1"}


@pytest.mark.parametrize(
    ("policy", "left"),
    [("All", set()), ("None", {"digits-coordinator-1", "digits-worker-0-1", "digits-worker-1-1"})],
)
def test_the_clean_pod_policy_says_what_stays(policy, left):
    it = cluster(runPolicy={"cleanPodPolicy": policy})
    it.settle()
    assert set(it.pods) == left


def test_a_finished_job_deletes_itself_after_its_time_to_live():
    it = cluster(runPolicy={"ttlSecondsAfterFinished": 30})
    run_until(it, lambda it: it.progress.finished is not None)
    ended = it.now
    it.settle()
    assert it.gone
    assert 30 <= it.now - ended < 120


def test_nothing_is_created_while_not_everything_fits():
    it = cluster(jobs.group("worker", 6))
    for _ in range(20):
        it.operate()
        it.tick()
    assert it.made == []
    assert it.children == set()
    assert it.said[-1].admitted.reason == "NoPlace"
    it.capacity["n0"] = 3
    it.settle()
    assert it.progress.succeeded


def test_a_pod_refused_by_a_quota_takes_all_others_with_it():
    it = cluster(quota := jobs.group("worker", 3))
    assert quota["replicas"] == 3
    it.quota = 3
    seen = []
    for _ in range(40):
        it.operate()
        seen.append(len(it.alive()))
        it.tick()
    assert max(seen) == 3
    assert min(seen[3:]) == 0
    assert any("exceeded quota" in decision.admitted.message for decision in it.said)
    it.quota = 4
    it.settle()
    assert it.progress.succeeded


def test_a_place_taken_between_plan_and_binding_withdraws_the_gang_within_15_seconds():
    it = cluster(jobs.group("worker", 3), nodes=(2, 2))
    run_until(it, lambda it: len(it.made) == 4)
    it.foreign["n1"] = 1
    began = it.now
    run_until(it, lambda it: not it.alive())
    assert it.now - began <= 15
    it.capacity["n0"] = 3
    it.settle()
    assert it.progress.succeeded
    assert it.progress.restarts == 0


def test_a_gang_that_was_bound_and_turned_away_by_a_node_leaves_no_pod_and_counts_no_restart():
    it = cluster(jobs.group("worker", 3), nodes=(4,), runPolicy={"backoffLimit": 0})
    for setback in range(1, 4):
        run_until(it, lambda it: it.progress.started is not None)
        it.turn_away(sorted(it.pods)[setback])
        it.operate()
        assert (it.progress.started, it.progress.placement_failures) == (None, setback)
        assert it.said[-1].admitted.reason == "PodFailed"
        assert "OutOfnvidia.com/gpu: Pod was rejected" in it.said[-1].admitted.message
        assert 2 ** (setback - 1) <= it.progress.retry_at - it.now <= 2**setback
        run_until(it, lambda it: not it.pods, 3)
    it.settle()
    assert (it.progress.succeeded, it.progress.restarts) == (True, 0)


def test_while_a_gang_that_was_turned_away_waits_it_keeps_its_turn():
    it = cluster(jobs.group("worker", 3), nodes=(4,))
    it.operate()
    asked = it.progress.waiting_since
    for attempt in (1, 2, 3):
        run_until(it, lambda it: it.progress.started is not None)
        assert it.progress.started > asked
        it.turn_away(f"digits-worker-1-{attempt}")
        it.operate()
        assert it.progress.waiting_since == asked


def test_a_gang_that_is_turned_away_again_and_again_fails_when_its_patience_ends():
    it = cluster(nodes=(4,), scheduling={"scheduleTimeoutSeconds": 100})
    began = it.now
    while it.progress.finished is None and it.now - began < 600:
        it.operate()
        for name in [name for name, pod in it.pods.items() if pod.host == "worker-1" and pod.node]:
            it.turn_away(name)
        it.tick()
    assert it.said[-1].ended.reason == "ScheduleTimeout"
    assert 100 <= it.now - began <= 105


def test_a_job_that_runs_in_time_does_not_fail_for_how_long_it_waited():
    it = cluster(scheduling={"scheduleTimeoutSeconds": 30}, length=100)
    it.foreign = {"n0": 2, "n1": 2}
    run_until(it, lambda it: it.now > 1025)
    it.foreign.clear()
    it.settle()
    assert (it.progress.succeeded, it.progress.restarts) == (True, 0)


def test_while_it_pauses_a_job_still_says_what_the_setback_was():
    it = cluster(jobs.group("worker", 3), nodes=(4,))
    it.quota = 2
    run_until(it, lambda it: it.progress.retry_at > it.now)
    assert it.said[-1].admitted.reason == "Refused"
    assert it.operate().admitted is None


def test_after_a_deadline_the_coordinator_goes_at_once_with_the_workers():
    it = cluster(length=1000, runPolicy={"activeDeadlineSeconds": 20})
    run_until(it, lambda it: it.progress.finished is not None)
    ended = it.now
    run_until(it, lambda it: not it.alive())
    assert it.now - ended <= 2


def test_pauses_between_placements_grow():
    it = cluster(jobs.group("worker", 3), nodes=(4,))
    it.quota = 2
    pauses = set()
    for _ in range(200):
        it.operate()
        it.tick()
        if it.progress.retry_at:
            pauses.add((it.progress.placement_failures, round(it.progress.retry_at - it.now)))
    assert it.progress.placement_failures >= 5
    assert max(pause for placement_failures, pause in pauses if placement_failures >= 5) > 15


def test_a_job_without_a_place_fails_when_its_patience_ends():
    it = cluster(jobs.group("worker", 9), scheduling={"scheduleTimeoutSeconds": 60})
    it.settle()
    assert not it.progress.succeeded
    assert it.said[-1].progress.finished is not None
    assert {decision.ended.reason for decision in it.said if decision.ended} == {"ScheduleTimeout"}


class TestLosses:
    def test_a_lost_worker_is_replaced_at_once_under_a_new_name(self):
        it = cluster(length=50)
        run_until(it, training)
        it.kill("digits-worker-1-1", reason="Evicted")
        began = it.now
        run_until(it, lambda it: "digits-worker-1-2" in it.pods)
        assert it.now - began <= 2
        it.settle()
        assert it.progress.succeeded
        assert it.progress.restarts == 1
        assert it.made[3:] == ["digits-worker-1-2"]
        assert it.rosters[-1] == (2, ("worker-0", "worker-1"))

    def test_a_deleted_worker_is_replaced(self):
        it = cluster(length=50)
        run_until(it, training)
        del it.pods["digits-worker-0-1"]
        it.settle()
        assert (it.progress.succeeded, it.progress.restarts) == (True, 1)

    def test_a_deleted_worker_that_ends_well_is_lost_all_the_same(self):
        it = cluster(length=50)
        run_until(it, training)
        it.kill("digits-worker-0-1", phase="Succeeded", exit_code=0, deleting=True)
        run_until(it, lambda it: "digits-worker-0-2" in it.pods)
        assert it.progress.restarts == 1

    def test_a_worker_that_ends_well_is_not_replaced_before_the_others_have_had_time_to_end(self):
        it = cluster(length=50)
        run_until(it, training)
        it.kill("digits-worker-0-1", phase="Succeeded", exit_code=0)
        began = it.now
        run_until(it, lambda it: "digits-worker-0-2" in it.pods)
        assert 15 <= it.now - began <= 17
        assert it.progress.restarts == 1
        assert it.rosters == [(1, ("worker-0", "worker-1"))]

    def test_two_workers_lost_together_are_one_restart(self):
        it = cluster(length=50)
        run_until(it, training)
        it.kill("digits-worker-0-1")
        it.kill("digits-worker-1-1")
        it.settle()
        assert (it.progress.succeeded, it.progress.restarts) == (True, 1)

    def test_a_node_is_given_up_only_after_its_time(self):
        it = cluster(jobs.group("worker", 3), nodes=(2, 2, 2), length=60)
        run_until(it, training)
        lost = it.pods["digits-worker-2-1"].node
        it.node(lost, ready=False)
        for _ in range(4):
            it.operate()
            it.tick()
        assert len(it.made) == 4
        it.settle()
        assert it.progress.succeeded
        assert not any(pod.node == lost for pod in it.pods.values() if pod.alive)

    def test_a_node_that_comes_back_in_time_costs_a_restart_and_no_pod(self):
        it = cluster(length=30)
        run_until(it, training)
        it.node("n0", ready=False)
        for _ in range(3):
            it.operate()
            it.tick()
        it.node("n0", ready=True)
        it.settle()
        assert it.progress.succeeded
        assert len(it.made) == 3
        assert it.progress.restarts <= 1

    def test_a_lost_coordinator_is_a_new_attempt_with_the_same_workers(self):
        it = cluster(length=30)
        run_until(it, training)
        it.kill("digits-coordinator-1")
        it.settle()
        assert (it.progress.succeeded, it.progress.restarts) == (True, 1)
        assert it.made[3:] == ["digits-coordinator-2"]

    def test_a_program_that_fails_is_started_again_after_a_pause(self):
        it = cluster(length=30)
        run_until(it, training)
        it.kill("digits-coordinator-1", exit_code=3, reason="Error", message="rank 0: exit status 3")
        began = it.now
        run_until(it, lambda it: "digits-coordinator-2" in it.pods)
        assert 4 <= it.now - began <= 8

    def test_the_backoff_limit_ends_the_job(self):
        it = cluster(length=300, runPolicy={"backoffLimit": 2})
        for attempt in (1, 2, 3):
            run_until(it, lambda it: training(it) and it.leader() is not None)
            it.kill(f"digits-coordinator-{attempt}", exit_code=3, message="rank 0: exit status 3")
            it.progress = it.operate().progress
            it.tick()
        it.settle()
        assert not it.progress.succeeded
        ended = next(decision.ended for decision in it.said if decision.ended)
        assert ended.reason == "BackoffLimitExceeded"
        assert "rank 0: exit status 3" in ended.message

    def test_with_min_replicas_the_job_goes_on_without_and_grows_back(self):
        it = cluster(jobs.group("worker", 3, minReplicas=2), nodes=(2, 1, 1), length=60)
        run_until(it, training)
        lost = it.pods["digits-worker-2-1"].node
        it.node(lost, ready=False)
        run_until(it, lambda it: it.rosters[-1][1] == ("worker-0", "worker-1"))
        run_until(it, training)
        assert it.said[-1].degraded.reason == "NoPlace"
        restarts = it.progress.restarts
        it.node(lost, ready=True)
        run_until(it, lambda it: len(it.rosters[-1][1]) == 3)
        assert it.progress.restarts == restarts
        it.settle()
        assert it.progress.succeeded

    def test_without_min_replicas_it_waits_for_a_place(self):
        it = cluster(jobs.group("worker", 3), nodes=(2, 1, 1), length=60)
        run_until(it, training)
        it.node(it.pods["digits-worker-2-1"].node, ready=False)
        for _ in range(60):
            it.operate()
            it.tick()
        assert not training(it)
        assert it.said[-1].degraded.reason == "NoPlace"
        assert it.progress.restarts == 1
        it.capacity["n0"] = 3
        it.settle()
        assert it.progress.succeeded

    def test_a_replacement_whose_place_is_taken_goes_elsewhere_and_is_no_restart(self):
        it = cluster(jobs.group("worker", 2), nodes=(3, 1), length=60)
        run_until(it, training)
        it.kill("digits-worker-1-1")
        run_until(it, lambda it: "digits-worker-1-2" in it.pods)
        it.foreign["n0"] = 1
        it.settle()
        assert it.progress.succeeded
        assert it.progress.restarts == 1
        assert "digits-worker-1-3" in it.made

    def test_a_replacement_that_its_node_turns_away_is_tried_again_and_is_no_restart(self):
        it = cluster(jobs.group("worker", 2), nodes=(3, 1), length=60, runPolicy={"backoffLimit": 1})
        run_until(it, training)
        it.kill("digits-worker-1-1")
        run_until(it, lambda it: it.pods.get("digits-worker-1-2") and it.pods["digits-worker-1-2"].node)
        others = {name: pod.uid for name, pod in it.pods.items() if name not in WORKER_1}
        it.turn_away("digits-worker-1-2")
        run_until(it, lambda it: "digits-worker-1-3" in it.pods)
        assert any(said.degraded and said.degraded.reason == "PodFailed" for said in it.said)
        assert others.items() <= {name: pod.uid for name, pod in it.pods.items()}.items()
        it.settle()
        assert (it.progress.succeeded, it.progress.restarts) == (True, 1)


class TestSuspension:
    def test_a_suspended_job_has_no_pods_and_resumes(self):
        it = cluster(length=30)
        run_until(it, training)
        it.body["spec"]["suspend"] = True
        run_until(it, lambda it: not it.pods)
        assert it.progress.started is None
        assert it.said[-1].admitted.reason == "Suspended"
        it.body["spec"]["suspend"] = False
        it.settle()
        assert (it.progress.succeeded, it.progress.restarts) == (True, 0)
        assert it.made[3:] == ["digits-coordinator-2", "digits-worker-0-2", "digits-worker-1-2"]

    def test_a_suspended_job_is_recorded_before_its_pods_are_deleted_and_not_for_each_that_goes(self):
        it = cluster(length=30)
        run_until(it, training)
        it.body["spec"]["suspend"] = True
        before = len(it.said)
        run_until(it, lambda it: not it.pods)
        for _ in range(3):
            it.tick()
            it.operate()
        said = [Record() in each.actions for each in it.said[before:] if each.admitted.reason == "Suspended"]
        assert len(said) > 1
        assert said.count(True) == 1
        assert said[0]

    def test_a_suspended_job_leaves_nothing_on_a_lost_node(self):
        it = cluster(length=30)
        run_until(it, training)
        it.node("n0", ready=False)
        it.body["spec"]["suspend"] = True
        run_until(it, lambda it: not it.pods)

    def test_a_job_changed_and_resumed_before_anyone_looked_starts_with_new_pods(self):
        it = cluster(length=30)
        run_until(it, training)
        it.body["spec"]["workerGroups"][0]["template"]["spec"]["containers"][0]["image"] = "train:2"
        it.body["metadata"]["generation"] += 1  # as the API server does
        it.settle()
        assert it.progress.succeeded
        assert it.progress.restarts == 0
        assert {"digits-worker-0-2", "digits-worker-1-2"} <= set(it.made)


class TestChangesOfARunningJob:
    def test_more_replicas_join_in_a_new_generation(self):
        it = cluster(jobs.group("worker", 2, minReplicas=1), length=60)
        run_until(it, training)
        it.body["spec"]["workerGroups"][0]["replicas"] = 3
        it.settle()
        assert (it.progress.succeeded, it.progress.restarts) == (True, 0)
        assert it.rosters == [(1, ("worker-0", "worker-1")), (2, ("worker-0", "worker-1", "worker-2"))]

    def test_fewer_replicas_leave_once_the_coordinator_knows(self):
        it = cluster(jobs.group("worker", 3, minReplicas=1), length=60)
        run_until(it, training)
        it.body["spec"]["workerGroups"][0]["replicas"] = 2
        run_until(it, lambda it: it.rosters[-1][1] == ("worker-0", "worker-1"))
        run_until(it, lambda it: "digits-worker-2-1" not in it.pods)
        it.settle()
        assert (it.progress.succeeded, it.progress.restarts) == (True, 0)

    def test_beyond_the_certificates_it_says_so_and_goes_on(self):
        it = cluster(jobs.group("worker", 2, minReplicas=1), nodes=(9,), length=60)
        run_until(it, training)
        it.body["spec"]["workerGroups"][0]["replicas"] = 6
        run_until(it, lambda it: len(it.rosters[-1][1]) == 4)
        run_until(it, training)
        assert it.said[-1].degraded.reason == "TooLarge"
        it.settle()
        assert it.progress.succeeded

    def test_another_density_is_a_new_plan_and_nothing_else(self):
        it = cluster(length=60, compression={"algorithm": "TopK", "densityPermille": 10})
        run_until(it, training)
        assert it.leader()[1].plan == 1
        it.body["spec"]["compression"]["densityPermille"] = 20
        run_until(it, lambda it: it.leader()[1].plan == 2)
        assert len(it.rosters) == 1
        assert training(it)

    def test_a_new_coordinator_gets_the_plan_again(self):
        it = cluster(length=60, compression={"algorithm": "TopK", "densityPermille": 10})
        run_until(it, training)
        it.kill("digits-coordinator-1")
        run_until(it, lambda it: it.leader() is not None and it.leader()[1].plan == 1)


class TestDeadlines:
    def test_a_job_that_takes_too_long_fails(self):
        it = cluster(length=10**6, runPolicy={"activeDeadlineSeconds": 60})
        it.settle()
        assert {decision.ended.reason for decision in it.said if decision.ended} == {"DeadlineExceeded"}
        assert it.alive() == set()

    def test_a_job_that_does_not_get_to_running_fails(self):
        it = cluster(runPolicy={"preRunningDeadlineSeconds": 60})
        it.deaf = True
        it.settle()
        ended = {decision.ended.reason for decision in it.said if decision.ended}
        assert ended == {"PreRunningDeadlineExceeded"}


def test_a_deleted_job_is_left_to_the_garbage_collector():
    it = cluster()
    run_until(it, training)
    it.body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert it.operate().actions == ()


def test_deleted_certificates_mean_new_pods():
    it = cluster(length=30)
    run_until(it, training)
    it.authority, it.certified = None, frozenset()
    it.settle()
    assert (it.progress.succeeded, it.progress.restarts) == (True, 1)
    assert len(it.made) == 6


WORDS = ["kill", "turn away", "delete", "down", "up", "steal", "give back", "quota", "no quota", "crash"]
EVENTS = st.sampled_from(WORDS)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(EVENTS, st.integers(0, 7), st.integers(0, 6)), max_size=25), st.booleans())
def test_whatever_happens_the_job_ends_well_and_nothing_is_made_twice(events, elastic):
    group = jobs.group("worker", 3, **({"minReplicas": 2} if elastic else {}))
    it = cluster(group, nodes=(2, 2, 2), length=25)
    for event, which, pause in events:
        names, nodes = sorted(it.pods), sorted(it.nodes)
        match event:
            case "kill" if names:
                it.kill(names[which % len(names)])
            case "turn away" if names:
                it.turn_away(names[which % len(names)])
            case "delete" if names:
                del it.pods[names[which % len(names)]]
            case "down" | "up":
                it.node(nodes[which % len(nodes)], ready=event == "up")
            case "steal" | "give back":
                it.foreign[nodes[which % len(nodes)]] = int(event == "steal")
            case "quota" | "no quota":
                it.quota = which if event == "quota" else 100
        for _ in range(pause):
            with contextlib.suppress(Crash):
                it.operate(crash_at=which if event == "crash" else None)
            it.tick(0.5)
        ranks = [agent.host for agent in it.pods.values() if agent.role == "worker" and agent.alive]
        assert len(ranks) == len(set(ranks)), "two pods of one place"
    it.foreign, it.quota = {}, 100
    for node in it.nodes:
        it.node(node, ready=True)
    it.settle(2000)
    assert it.progress.succeeded or it.gone
    assert it.alive() == set()


def test_a_replacement_is_newer_than_any_roster_so_that_no_coordinator_takes_it_for_left_over():
    it = cluster(length=30)
    run_until(it, training)
    for roster in (2, 3):
        it.leader()[1].state = "Lost"
        run_until(it, lambda it, roster=roster: it.rosters[-1][0] == roster and training(it))
    it.kill("digits-worker-1-1")
    with contextlib.suppress(Crash):
        while True:
            made = len(it.made) > 3
            it.operate(crash_at=0 if made else None)
            it.tick()
    new = it.pods[it.made[-1]]
    assert (new.host, it.rosters[-1]) == ("worker-1", (3, ("worker-0", "worker-1")))
    assert new.generation > 3
    it.settle()
    assert (it.progress.succeeded, it.rosters[-1][0]) == (True, new.generation)


@pytest.mark.parametrize("crash_at", range(8))
def test_killed_before_any_action_the_end_is_the_same(crash_at):
    it = cluster(length=10)
    for _ in range(60):
        with contextlib.suppress(Crash):
            it.operate(crash_at=crash_at)
        with contextlib.suppress(Crash):
            it.operate()
        it.tick()
    it.settle()
    assert (it.progress.succeeded, it.progress.restarts) == (True, 0)
    assert len(it.made) == 3
