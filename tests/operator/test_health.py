"""Liveness fails when a part of the operator stands still, readiness when it could not take over."""

import asyncio
import contextlib
import math
import socket

import aiohttp
import horovod_jobs as jobs
import pytest
from operator_in_memory import running, until

from gradsieve_operator.cluster.health import (
    LONGEST_SECONDS,
    MOST_CONNECTIONS,
    UNHEARD_SECONDS,
    serving_health,
)
from gradsieve_operator.cluster.operator import Operator
from gradsieve_operator.cluster.options import Options
from gradsieve_operator.cluster.queue import WorkQueue

JOB = "gradsieve.io/v1alpha1/horovodjobs"


async def ask(port: int, path: str = "/healthz") -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as answer,
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
    ages = {"list of jobs": 0.0, "watch of nodes": age}
    async with serving_health(f"127.0.0.1:{port}", lambda: ages, dict):
        found, said = await ask(port)
    assert (found, said.splitlines()[-1]) == (status, last)
    assert f"watch of nodes: {age:.1f} s" in said


async def test_connections_that_ask_nothing_neither_pile_up_nor_keep_the_kubelet_out(port):
    async with serving_health(f"127.0.0.1:{port}", dict, dict):
        held = []
        for _ in range(4):
            # In bursts: a server accepts many before it looks at the first.
            burst = [socket.create_connection(("127.0.0.1", port)) for _ in range(90)]
            held += [await asyncio.open_connection(sock=each) for each in burst]
        assert (await ask(port))[0] == 200
        ended = [asyncio.create_task(reader.read()) for reader, _ in held]
        left = set(ended)
        async with asyncio.timeout(20):
            while len(left) > MOST_CONNECTIONS:
                _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        for _, writer in held:
            writer.close()


async def test_a_running_operator_tells_of_all_its_parts(server, port):
    server.objects[JOB, "research", "digits"] = jobs.body()
    operator = Operator(Options(health=f"127.0.0.1:{port}"))
    assert operator.ages() == {}
    await operator.start()
    try:
        _, said = await ask(port)
    finally:
        await operator.stop()
    assert [line.partition(":")[0] for line in said.splitlines()] == [
        "watch of jobs",
        "watch of policies",
        "watch of jobs' pods",
        "watch of jobs' other children",
        "reconciling",
        "watch of nodes",
        "watch of pods",
        "planning",
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


async def test_a_standby_is_ready_while_it_hears_the_api_server_and_stays_alive_without(
    server, port, monkeypatch
):
    async with leading() as leader, waiting(port) as standby:
        await until(lambda: standby.silences()["API server"] < UNHEARD_SECONDS)
        assert (await ask(port, "/readyz"))[0] == 200
        # From now on the server answers nobody, and half a minute passes.
        server["/apis/coordination.k8s.io"] << 503
        heard = standby._lease._heard
        monkeypatch.setattr(standby._lease, "_heard", heard - UNHEARD_SECONDS - 1)
        status, said = await ask(port, "/readyz")
        assert (status, said.splitlines()[-1]) == (503, "stalled")
        assert "API server: 3" in said
        assert (await ask(port))[0] == 200, "starting it again would not help"
        assert leader.silences()["API server"] < UNHEARD_SECONDS


async def test_a_replica_that_has_never_reached_the_api_server_is_not_ready():
    replica = Operator(Options(namespace="system"))
    assert replica.silences() == {"API server": math.inf}
    assert Operator(Options()).silences() == {}, "it needs no Lease"


@contextlib.asynccontextmanager
async def leading():
    async with running(namespace="system", identity="one") as operator:
        yield operator


@contextlib.asynccontextmanager
async def waiting(port):
    """A replica that waits to lead."""
    operator = Operator(Options(namespace="system", identity="two", health=f"127.0.0.1:{port}"))
    starting = asyncio.create_task(operator.start())
    try:
        await until(lambda: operator._lease is not None)
        yield operator
    finally:
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
