"""A replica that waits to lead has the cluster in hand, and reads once more what it begins with."""

import asyncio
import contextlib

import horovod_jobs as jobs
from operator_in_memory import JOB, bind, conditions, until

from gradsieve_operator.cluster.operator import Operator, Options

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
