"""Each look at a job writes its status once, if anything has changed at all, and Events wait beside it."""

import asyncio
import logging

import horovod_jobs as jobs
import pytest
from operator_in_memory import JOB, bind, conditions, running, until

from gradsieve_operator.cluster.access import Access
from gradsieve_operator.cluster.api import Api
from gradsieve_operator.cluster.events import Events
from gradsieve_operator.cluster.reporting import details_only
from gradsieve_operator.decide import Pace
from gradsieve_operator.status import recall

KEY = ("research", "digits")


def status_writes(server) -> int:
    return sum(write.endswith("/status") for write in server.writes)


def reasons(server) -> list[str]:
    return [event["reason"] for event in server.all("v1/events").values()]


async def test_what_is_recorded_before_pods_are_made_is_written_with_what_is_said_of_it(server):
    server.objects[JOB, *KEY] = jobs.body()
    written = []

    def note(request):
        if request.url.path.endswith("/status"):
            written.append(request.data["status"])

    server.before = note
    async with running():
        await until(lambda: len(server.all("v1/pods")) == 3)
    begun = next(status for status in written if recall(status).generation == 1)
    assert {"Binding"} == {each["reason"] for each in begun["conditions"] if each["type"] == "Admitted"}


async def test_a_suspended_job_at_which_nothing_changes_is_not_written_again(server):
    server.objects[JOB, *KEY] = jobs.body(suspend=True)
    async with running() as operator:
        await until(lambda: conditions(server).get("Suspended", {}).get("status") == "True")
        before = status_writes(server)
        for _ in range(5):
            operator.queue.add(KEY)
            await asyncio.sleep(0.1)
        assert status_writes(server) == before


async def test_pods_that_become_ready_one_by_one_are_counted_in_one_write_and_all_of_them(server):
    server.objects[JOB, *KEY] = jobs.body(jobs.group("worker", 8))
    async with running(pace=Pace(details=1.0)):
        await until(lambda: len(server.all("v1/pods")) == 9)
        bind(server)
        await until(lambda: conditions(server)["Admitted"]["reason"] == "Placed")
        before = status_writes(server)
        for name in [name for name in server.all("v1/pods") if "worker" in name]:
            ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            server.objects["v1/pods", "research", name].patch({"status": ready})
            await asyncio.sleep(0.1)
        await until(lambda: server.all(JOB)["digits"]["status"].get("ready") == 8)
        # One for each second that went by, and one that says more: the coordinator does not answer.
        assert status_writes(server) - before <= 3


async def test_a_suspension_is_told_by_one_event_when_all_pods_are_gone(server):
    server.objects[JOB, *KEY] = jobs.body()
    async with running() as operator:
        await until(lambda: len(server.all("v1/pods")) == 3)
        bind(server)
        await until(lambda: conditions(server)["Admitted"]["reason"] == "Placed")
        server.objects[JOB, *KEY].patch({"spec": {"suspend": True}})
        operator.queue.add(KEY)
        await until(lambda: conditions(server)["Suspended"]["status"] == "True")
        server.objects[JOB, *KEY].patch({"spec": {"suspend": False}})
        operator.queue.add(KEY)
        await until(lambda: len(server.all("v1/pods")) == 3)
        bind(server)
        await until(lambda: reasons(server).count("Placed") == 2)
    # Events are posted in their order.
    assert [each for each in reasons(server) if each.startswith("Suspend")] == ["Suspended"]


@pytest.mark.parametrize(
    ("change", "details"),
    [
        pytest.param({"ready": 3}, True, id="a count"),
        pytest.param(
            {"conditions": [{"type": "Running", "status": "True", "reason": "Running", "message": "other"}]},
            True,
            id="a message",
        ),
        pytest.param(
            {"conditions": [{"type": "Running", "status": "True", "reason": "Other", "message": ""}]},
            False,
            id="a reason",
        ),
        pytest.param({"conditions": []}, False, id="a condition that goes"),
        pytest.param({"workerGroups": [{"name": "g", "desired": 2, "ready": 2}]}, True, id="a group's count"),
        pytest.param({"workerGroups": [{"name": "g", "desired": 3, "ready": 1}]}, False, id="a group's size"),
        pytest.param({"ready": 3, "restartCount": 1}, False, id="a restart"),
        pytest.param({"record": {}}, False, id="what is recorded"),
    ],
)
def test_only_counts_and_messages_wait(change, details):
    said = {
        "ready": 2,
        "conditions": [{"type": "Running", "status": "True", "reason": "Running", "message": ""}],
        "workerGroups": [{"name": "g", "desired": 2, "ready": 1}],
    }
    assert details_only(said, change) == details


async def test_events_that_the_server_does_not_take_in_time_are_dropped_and_said_to_be(server, caplog):
    async with Api(Access.find()) as api:
        events = Events(api)
        with caplog.at_level(logging.WARNING):
            for number in range(1001):
                events.post(jobs.body()["metadata"], warning=False, reason=f"Reason{number}", message="")
    assert [record.getMessage() for record in caplog.records] == [
        "research/digits: no event Reason1000: too many wait"
    ]


@pytest.mark.parametrize(("count", "seconds"), [(1, 30), (480, 30), (800, 50), (960, 60), (5000, 60)])
def test_the_more_jobs_there_are_the_seldomer_samples_are_written_but_each_minute(count, seconds):
    assert Pace().among(count).telemetry == seconds


def test_samples_wait_while_more_jobs_are_due_than_are_looked_at():
    assert Pace().among(10, busy=True).telemetry == 120
    assert Pace().among(10, busy=True).starting > Pace().among(10).starting
    assert Pace().among(10).telemetry == 30


def test_who_has_samples_written_seldomer_than_that_has_his_will():
    assert Pace(telemetry=45).among(480).telemetry == 45
