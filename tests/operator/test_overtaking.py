"""What counts as overtaking a waiting job: another job's start, once; never what a job makes good."""

import asyncio

import kmock as kmock_library
from api_server import target
from operator_in_memory import (
    JOB,
    admitted,
    bind,
    change_record,
    conditions,
    recorded,
    running,
    submit,
    until,
)


def fail(server, pod: str) -> None:
    server.objects["v1/pods", "research", pod].patch({"status": {"phase": "Failed"}})


async def let_a_big_job_wait_for(server, operator, name: str) -> None:
    """Start a job of one worker, and submit one that needs its place, too."""
    submit(server, name, 1)
    operator.queue.add(("research", name))
    await until(lambda: f"{name}-worker-0-1" in server.all("v1/pods"))
    bind(server)
    await until(lambda: admitted(server, name) == "Placed")
    submit(server, "big", 3)
    operator.queue.add(("research", "big"))
    await until(lambda: admitted(server, "big") == "NoPlace")


async def test_a_job_that_ended_without_a_place_keeps_none_from_others(server):
    async with running() as operator:
        submit(server, "taken", 1)
        operator.queue.add(("research", "taken"))
        await until(lambda: "taken-worker-0-1" in server.all("v1/pods"))
        submit(server, "big", 3, scheduling={"scheduleTimeoutSeconds": 1})
        operator.queue.add(("research", "big"))
        await until(lambda: conditions(server, "big").get("Failed", {}).get("reason") == "ScheduleTimeout")
        server.objects[JOB, "research", "taken"].patch({"spec": {"suspend": True}})
        operator.queue.add(("research", "taken"))
        await until(lambda: not server.all("v1/pods"))
        submit(server, "late", 2)
        operator.queue.add(("research", "late"))
        await until(lambda: "late-worker-1-1" in server.all("v1/pods"))
    assert recorded(server, "big").waiting_since is None


async def test_the_replacement_of_a_lost_worker_overtakes_nobody(server):
    async with running() as operator:
        await let_a_big_job_wait_for(server, operator, "small")
        fail(server, "small-worker-0-1")
        operator.queue.add(("research", "small"))
        await until(lambda: "small-worker-0-2" in server.all("v1/pods"))
        operator.queue.add(("research", "big"))
        await asyncio.sleep(0.5)
        assert recorded(server, "big").overtaken == 0


async def test_a_running_job_gets_its_replacement_also_while_places_are_held_for_another(server):
    """It would wait for the other one otherwise, which waits for it."""
    async with running() as operator:
        await let_a_big_job_wait_for(server, operator, "small")
    change_record(server, "big", overtaken=3)
    async with running() as operator:
        fail(server, "small-worker-0-1")
        operator.queue.add(("research", "small"))
        await until(lambda: "small-worker-0-2" in server.all("v1/pods"))


async def test_after_a_restart_an_urgent_job_comes_before_one_that_has_waited_longer(server):
    server.objects["scheduling.k8s.io/v1/priorityclasses", None, "urgent"] = {
        "metadata": {"name": "urgent"},
        "value": 1000,
    }
    for hour, name, scheduling in ((1, "older", {}), (2, "urgent", {"priorityClassName": "urgent"})):
        submit(server, name, 3, scheduling=scheduling)
        waits = {"status": {"progress": {"waitingSince": f"2026-01-01T0{hour}:00:00.000000Z"}}}
        server.objects[JOB, "research", name].patch(waits)
    async with running():
        # At once: pods that nobody binds are withdrawn, and the other job would have its turn.
        await until(lambda: len(server.all("v1/pods")) == 4)
        assert {name.partition("-")[0] for name in server.all("v1/pods")} == {"urgent"}


async def test_a_job_whose_pods_are_refused_again_and_again_overtakes_once(server):
    refused = 0

    def quota(request):
        nonlocal refused
        if "pods/small-worker" in target(request) and request.method.value.upper() == "POST":
            refused += 1
            raise kmock_library.KubernetesError(status=403, reason="Forbidden", message="exceeded quota")

    async with running() as operator:
        await let_a_big_job_wait_for(server, operator, "taken")
        server.before = quota
        submit(server, "small", 1)
        operator.queue.add(("research", "small"))
        await until(lambda: refused == 3)
        operator.queue.add(("research", "big"))
        await until(lambda: recorded(server, "big").overtaken > 0)
        await asyncio.sleep(0.5)
        assert recorded(server, "big").overtaken == 1
