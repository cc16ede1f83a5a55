"""What was decided on a job that has changed since is not written; the job is looked at again."""

import asyncio

import horovod_jobs as jobs
import pytest
from operator_in_memory import JOB, bind, conditions, recorded, running, until

from gradsieve_operator.decide import Progress
from gradsieve_operator.status import recall, record

KEY = (JOB, "research", "digits")
ENDED = Progress(finished=1767225605.0, succeeded=True, roster=7)


@pytest.fixture
def job(server):
    server.objects[KEY] = jobs.body()
    server.objects[KEY].patch({"metadata": {"resourceVersion": "1000"}})
    return server.objects[KEY]


def status_writes(server) -> int:
    return sum(write.endswith("/status") for write in server.writes)


async def test_a_record_does_not_undo_what_another_leader_has_recorded_meanwhile(server, job):
    changed = []

    def successor(request):
        status = request.data.get("status", {})
        if "record" in status and not changed:
            changed.append(recall(status))
            job.patch({"metadata": {"resourceVersion": "2000"}, "status": record(ENDED)})

    server.before = successor
    async with running():
        await until(lambda: bool(changed))
        await until(lambda: conditions(server).get("Complete", {}).get("status") == "True")
    assert changed[0].finished is None, "that would have started the ended job again"
    assert recorded(server) == ENDED
    assert server.all("v1/pods") == {}


async def test_an_invalid_job_s_status_is_written_anew_when_it_changes_meanwhile(server, job):
    job.patch({"spec": {"compression": {"policyRef": {"name": "thin"}}}})
    changed = []

    def author(request):
        if request.url.path.endswith("/status") and not changed:
            changed.append(True)
            job.patch({"metadata": {"resourceVersion": "2000", "generation": 2}})

    server.before = author
    async with running():
        await until(lambda: "Admitted" in conditions(server))
    assert server.all(JOB)["digits"]["status"]["observedGeneration"] == 2


async def test_the_operator_s_own_writes_do_not_stand_in_each_other_s_way(server, job):
    stale = []

    def check(request):
        if request.url.path.endswith("/status"):
            seen = request.data["metadata"]["resourceVersion"]
            stale.extend([seen] * (seen != job["metadata"]["resourceVersion"]))

    server.before = check
    async with running():
        await until(lambda: len(server.all("v1/pods")) == 3)
        bind(server)
        await until(lambda: conditions(server)["Admitted"]["reason"] == "Placed")
    assert status_writes(server) >= 4
    assert stale == []


async def test_a_job_that_changes_all_the_time_is_not_looked_at_without_a_pause(server, job):
    def someone(request):
        if request.url.path.endswith("/status"):
            job.patch({"metadata": {"resourceVersion": str(2000 + len(server.writes))}})

    server.before = someone
    async with running():
        await until(lambda: status_writes(server) >= 1)
        began = asyncio.get_running_loop().time()
        await until(lambda: status_writes(server) >= 4)
        assert asyncio.get_running_loop().time() - began >= 1.4
    assert server.all("v1/pods") == {}
