"""A replica that waits to lead has the cluster in hand, and reads once more what it begins with."""

import asyncio
import contextlib

import horovod_jobs as jobs
from operator_in_memory import JOB, bind, conditions, running, until

from gradsieve_operator.cluster import queue
from gradsieve_operator.cluster.kept_job import KeptJob
from gradsieve_operator.cluster.missed import Missed
from gradsieve_operator.cluster.operator import Operator
from gradsieve_operator.cluster.options import Options

JOBS = "/apis/gradsieve.io/v1alpha1/horovodjobs"


async def test_the_next_leader_lists_nothing_again_but_reads_each_job_before_it_decides(server):
    first, second = (Operator(Options(namespace="system", identity=name)) for name in ("one", "two"))
    await first.start()
    waiting = asyncio.create_task(second.start())
    try:
        server.objects[JOB, "research", "digits"] = jobs.body()
        await until(lambda: len(server.all("v1/pods")) == 3)
        bind(server)
        await until(lambda: conditions(server)["Admitted"]["reason"] == "Placed")
        assert not waiting.done()
        assert set(first.ages()) - set(second.ages()) == {"reconciling"}
        before, pods = len(list(server)), set(server.all("v1/pods"))
        await first.stop()
        await asyncio.wait_for(waiting, 30)
        read = {"fieldSelector": "metadata.name=digits"}
        await until(lambda: any(read.items() <= each.params.items() for each in list(server)[before:]))
        server.objects[JOB, "research", "late"] = jobs.body(name="late")
        await until(lambda: "late-worker-0-1" in server.all("v1/pods"))
        lists = [each for each in list(server)[before:] if each.url.path in (JOBS, "/api/v1/nodes")]
        assert [each for each in lists if "watch" not in each.params] == []
        assert pods <= set(server.all("v1/pods"))
    finally:
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        await second.stop()


async def test_what_was_asked_for_while_nobody_led_waits_for_no_other_job(server, monkeypatch):
    monkeypatch.setattr(queue, "_TURN_SECONDS", 3600.0)
    for name in ("a", "b", "c"):
        server.objects[JOB, "research", name] = jobs.body(jobs.group("worker"), name=name)
    async with running():
        await until(lambda: {f"{name}-worker-0-1" for name in "abc"} <= set(server.all("v1/pods")))


def test_jobs_nobody_has_looked_at_come_first_and_then_those_whose_pods_changed_lately():
    now = 0.0
    missed = Missed(lambda: now)
    for number in range(3):
        missed.pod_seen(("research", f"early-{number}"))
    now = 50.0
    for name in ("late", "other", "late"):
        missed.pod_seen(("research", name))
    now = 70.0
    seen = {"metadata": {"namespace": "research", "name": "seen", "generation": 2}}
    known = [
        {**seen, "status": {"observedGeneration": 2}},
        {"metadata": {**seen["metadata"], "name": "changed"}, "status": {"observedGeneration": 1}},
        {"metadata": {**seen["metadata"], "name": "new"}},
    ]
    unanswered = [kept.key for kept in map(KeptJob.keep, known) if kept.unanswered]
    assert [name for _, name in missed.jobs(unanswered)] == ["changed", "new", "other", "late"]
