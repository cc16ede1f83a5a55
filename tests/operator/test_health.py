"""The liveness endpoint says which part of the operator stands still, and fails if it has for too long."""

import asyncio
import contextlib

import aiohttp
import horovod_jobs as jobs
import pytest

from gradsieve_operator.cluster.health import LONGEST_SECONDS, serve_health
from gradsieve_operator.cluster.operator import Operator, Options
from gradsieve_operator.cluster.queue import WorkQueue

JOB = "gradsieve.io/v1alpha1/horovodjobs"


async def ask(port: int) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/healthz") as answer,
    ):
        return answer.status, await answer.text()


@pytest.mark.parametrize(
    ("age", "status", "last"),
    [
        pytest.param(1.0, 200, "ok", id="moving"),
        pytest.param(LONGEST_SECONDS + 1, 503, "stalled", id="stuck"),
    ],
)
async def test_it_fails_when_any_part_has_stood_still_for_too_long(port, age, status, last):
    runner = await serve_health(f"127.0.0.1:{port}", lambda: {"list of jobs": 0.0, "watch of nodes": age})
    try:
        found, said = await ask(port)
    finally:
        await runner.cleanup()
    assert (found, said.splitlines()[-1]) == (status, last)
    assert f"watch of nodes: {age:.1f} s" in said


async def test_a_running_operator_tells_of_all_its_parts_and_misses_events_that_do_not_come(server, port):
    server.objects[JOB, "research", "digits"] = jobs.body()
    operator = Operator(Options(health=f"127.0.0.1:{port}"))
    assert operator.ages() == {}, "a replica that waits to lead is well"
    await operator.start()
    try:
        # Nobody watches jobs here, but the list has shown one.
        for _ in range(400):
            if operator.ages()["watch of jobs"] > 0.0:
                break
            await asyncio.sleep(0.05)
        assert operator.ages()["watch of jobs"] > 0.0
        _, said = await ask(port)
        operator.job_seen("research", "digits", "1")
        assert operator.ages()["watch of jobs"] == 0.0
    finally:
        await operator.stop()
    assert [line.partition(":")[0] for line in said.splitlines()] == [
        "list of jobs",
        "watch of jobs",
        "reconciling",
        "watch of nodes",
        "watch of pods",
        "ok",
    ]


async def test_a_reconcile_that_hangs_shows():
    async def hang(_key):
        await asyncio.Event().wait()

    queue = WorkQueue(hang, 1)
    task = asyncio.create_task(queue.run())
    queue.add(("research", "digits"))
    await asyncio.sleep(0.2)
    queue.add(("research", "other"))
    assert queue.behind() >= 0.2
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
