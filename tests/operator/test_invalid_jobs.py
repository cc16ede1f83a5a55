"""A job that cannot start as it is written holds nothing, and can be suspended, ended and deleted."""

import asyncio

import horovod_jobs as jobs
import pytest
from operator_in_memory import JOB, bind, conditions, running, until
from virtual_cluster import VirtualCluster

_CPU = {"resources": {"requests": {"cpu": "3"}}}
"""Nearly a node: three pods in all, one on each."""

THIN = {"policyRef": {"name": "thin"}}
POLICY = ("gradsieve.io/v1alpha1/compressionpolicies", "research", "thin")
WRONG = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}}


def cluster(**spec) -> VirtualCluster:
    return VirtualCluster(jobs.body(**spec), {"n0": 2, "n1": 2})


def half_made() -> VirtualCluster:
    it = cluster()
    it.quota = 2
    while len(it.pods) < 2:
        it.operate()
    it.refused = ""
    it.quota = 10
    return it


def started() -> VirtualCluster:
    it = cluster(runPolicy={"activeDeadlineSeconds": 60})
    while not it.progress.running:
        it.operate()
        it.tick()
    return it


def policy(server) -> None:
    server.objects[POLICY] = {"metadata": {"name": "thin"}, "spec": {"densityPermille": 10}}


def submit(server, operator, name: str, workers: int, container=_CPU, **spec) -> None:
    group = jobs.group("worker", workers, container=container)
    server.objects[JOB, "research", name] = jobs.body(group, name=name, **spec)
    operator.queue.add(("research", name))


def change(server, operator, **spec) -> None:
    server.objects[JOB, "research", "digits"].patch({"spec": spec})
    operator.queue.add(("research", "digits"))


async def is_suspended(server, operator) -> None:
    await until(lambda: not server.all("v1/pods"))
    operator.queue.add(("research", "digits"))  # as the pods' events do
    await until(lambda: conditions(server)["Suspended"]["status"] == "True")


def admitted(server, name: str) -> str:
    return conditions(server, name).get("Admitted", {}).get("reason", "")


def test_its_half_made_gang_goes_and_comes_again_once_it_is_valid():
    it = half_made()
    it.invalid = "there is no policy"
    decision = it.operate()
    assert (decision.admitted.reason, decision.admitted.message) == ("InvalidSpec", "there is no policy")
    for _ in range(20):
        it.tick()
        it.operate()
    assert (it.pods, len(it.made)) == ({}, 2)
    it.invalid = ""
    it.settle()
    assert it.progress.succeeded


def test_the_time_that_it_waits_counts():
    it = cluster(scheduling={"scheduleTimeoutSeconds": 20})
    it.invalid, began = "there is no policy", it.now
    while it.progress.finished is None:
        it.operate()
        it.tick()
    assert 20 <= it.progress.finished - began <= 22
    word = next(decision.ended for decision in it.said if decision.ended)
    assert word.reason == "ScheduleTimeout"
    assert word.message.endswith("there is no policy")


def test_once_it_has_ended_it_deletes_itself_after_its_time_to_live():
    it = cluster(scheduling={"scheduleTimeoutSeconds": 5}, runPolicy={"ttlSecondsAfterFinished": 10})
    it.invalid = "there is no policy"
    it.settle()
    assert it.gone


@pytest.mark.parametrize(("length", "succeeded"), [(50, True), (1000, False)])
def test_ranks_that_run_go_on_to_their_end_or_deadline(length, succeeded):
    it = started()
    it.invalid, it.length, before = "a template is wrong", length, set(it.pods)
    decision = it.operate()
    assert (decision.actions, decision.degraded.reason) == ((), "InvalidSpec")
    it.settle()
    assert (it.progress.succeeded, it.progress.restarts) == (succeeded, 0)
    assert set(it.made) == before


async def test_a_job_that_waits_keeps_no_places_once_its_policy_is_gone(server):
    policy(server)
    async with running() as operator:
        submit(server, operator, "taken", 1)
        await until(lambda: "taken-worker-0-1" in server.all("v1/pods"))
        submit(server, operator, "digits", 3, compression=THIN)
        await until(lambda: admitted(server, "digits") == "NoPlace")
        server.objects[POLICY].delete()
        await until(lambda: admitted(server, "digits") == "InvalidSpec")
        server.objects[JOB, "research", "taken"].patch({"spec": {"suspend": True}})
        operator.queue.add(("research", "taken"))
        await until(lambda: not server.all("v1/pods"))
        submit(server, operator, "late", 2)
        await until(lambda: "late-worker-1-1" in server.all("v1/pods"))


async def test_a_job_whose_policy_has_gone_can_be_suspended(server):
    policy(server)
    async with running() as operator:
        submit(server, operator, "digits", 2, compression=THIN)
        await until(lambda: len(server.all("v1/pods")) == 3)
        server.objects[POLICY].delete()
        change(server, operator, suspend=True)
        await is_suspended(server, operator)


async def test_a_job_that_is_suspended_with_a_template_that_cannot_be_read_is_suspended(server):
    wrong = jobs.group("worker", 2, pod={"affinity": WRONG})
    async with running() as operator:
        submit(server, operator, "digits", 2, container={})
        await until(lambda: len(server.all("v1/pods")) == 3)
        bind(server)
        await until(lambda: admitted(server, "digits") == "Placed")
        change(server, operator, suspend=True, workerGroups=[wrong])
        await is_suspended(server, operator)
        change(server, operator, suspend=False)
        await until(lambda: admitted(server, "digits") == "InvalidSpec")
        await asyncio.sleep(0.5)
        assert server.all("v1/pods") == {}
        assert server.all(JOB)["digits"]["status"]["desired"] == 2
        change(server, operator, workerGroups=[jobs.group("worker", 2)])
        await until(lambda: len(server.all("v1/pods")) == 3)
