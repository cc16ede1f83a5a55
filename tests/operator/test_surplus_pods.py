"""Of several living pods of one place one counts; the others go at once, coordinator or not."""

from dataclasses import replace

import horovod_jobs as jobs
import pytest
from virtual_cluster import VirtualCluster

from gradsieve_operator.decide import Pod, Progress, part_surplus

WORKER = "digits-worker-0-1"


def cluster(**spec) -> VirtualCluster:
    return VirtualCluster(jobs.body(**spec), {"n0": 9, "n1": 9}, length=30)


def training() -> VirtualCluster:
    it = cluster()
    while not it.progress.running:
        if it.operate().requeue_after != 0.0:
            it.tick()
    return it


def copy(it: VirtualCluster, name: str, generation: int, **how) -> str:
    """Make another pod of the same place, as a leader that has stood still does; returns its name."""
    pod, other = it.pods[name], f"{name.rpartition('-')[0]}-{generation}"
    it.pods[other] = replace(pod, name=other, uid=f"uid-of-{other}", generation=generation, **how)
    return other


def pod(name: str, generation: int, **more) -> Pod:
    return Pod(name=name, uid=name, role="worker", host="worker-0", generation=generation, **more)


def test_the_newest_that_was_recorded_before_it_was_made_counts():
    pods = pod("old", 2), pod("right", 4), pod("unrecorded", 5)
    kept, surplus = part_surplus(pods, Progress(generation=4))
    assert [each.name for each in kept] == ["right"]
    assert {each.name for each in surplus} == {"old", "unrecorded"}


def test_pods_of_a_job_whose_record_was_lost_count():
    pods = (pod("old", 2, phase="Failed"), pod("right", 4))
    assert part_surplus(pods, Progress()) == (pods, ())


def test_those_that_end_or_are_over_are_in_nobody_s_way():
    pods = (pod("gone", 2, deleting=True), pod("over", 3, exit_code=1), pod("right", 4))
    assert part_surplus(pods, Progress(generation=4)) == (pods, ())


def test_a_number_that_was_never_reached_does_not_count_and_is_not_gone_on_from():
    it = training()
    absurd = copy(it, WORKER, 10**15)
    it.kill(WORKER)
    it.settle()
    assert (it.progress.succeeded, it.progress.restarts) == (True, 1)
    assert absurd not in it.pods
    assert it.progress.generation < 10


@pytest.mark.parametrize("generation", [0, 7])
def test_ranks_that_train_go_on_beside_a_surplus_pod_that_no_roster_names(generation):
    it = training()
    rosters = list(it.rosters)
    surplus = copy(it, WORKER, generation)
    it.live(3)
    assert surplus not in it.pods
    it.settle()
    assert (it.progress.succeeded, it.progress.restarts, it.rosters) == (True, 0, rosters)


def test_it_goes_although_no_coordinator_answers():
    it = training()
    surplus = copy(it, WORKER, 0)
    it.deaf = True
    it.operate()
    assert it.pods[surplus].deleting


def test_a_second_coordinator_goes():
    it = training()
    surplus = copy(it, "digits-coordinator-1", 0)
    it.live(2)
    assert surplus not in it.pods
    assert it.progress.restarts == 0


@pytest.mark.parametrize("generation", [0, 7])
def test_a_gang_with_a_surplus_pod_starts(generation):
    it = cluster()
    while len(it.pods) < 3:
        it.operate()
    surplus = copy(it, WORKER, generation)
    it.settle()
    assert (it.progress.succeeded, it.progress.restarts) == (True, 0)
    assert surplus not in it.pods


@pytest.mark.parametrize("ended", ["suspended", "finished"])
def test_it_goes_with_the_others(ended):
    it = training()
    surplus = copy(it, WORKER, 0)
    if ended == "suspended":
        it.body["spec"]["suspend"] = True
    else:
        it.length = it.committed + 1
    it.live(60)
    assert surplus not in it.pods
    assert it.alive() == set()
