"""Calls to coordinators: few at a time, of which slow ones hold a share only, on connections that stay."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from operator_in_memory import until

from gradsieve_operator.cluster.calls import MOST_CALLS, MOST_CONNECTIONS, Calls
from gradsieve_operator.cluster.fence import Fence


@pytest.fixture
async def calls():
    """Calls of a queue that parks nothing."""
    found = Calls(Fence(), contextlib.nullcontext)
    async with found:
        yield found


class Callers:
    """Callers that keep their connection until they are let go."""

    def __init__(self, calls: Calls) -> None:
        self._calls, self._over = calls, asyncio.Event()
        self.connected = {True: 0, False: 0}
        self.tasks: list[asyncio.Task] = []

    def call(self, number: int, *, slow: bool) -> None:
        self.tasks += [asyncio.create_task(self._call(slow)) for _ in range(number)]

    async def _call(self, slow: bool) -> None:
        async with self._calls.turn(slow=slow):
            self.connected[slow] += 1
            await self._over.wait()

    async def let_go(self) -> None:
        self._over.set()
        await asyncio.gather(*self.tasks)


async def test_no_more_calls_are_under_way_than_there_may_be_and_everybody_gets_a_turn_in_the_end(calls):
    callers = Callers(calls)
    callers.call(200, slow=False)
    callers.call(200, slow=True)
    await until(lambda: sum(callers.connected.values()) == MOST_CALLS)
    for _ in range(10):
        await asyncio.sleep(0)
    assert sum(callers.connected.values()) == MOST_CALLS
    assert calls.kept.connector.limit == calls.single.connector.limit == MOST_CALLS
    await callers.let_go()
    assert callers.connected == {True: 200, False: 200}


async def test_slow_ones_leave_connections_to_the_others(calls):
    callers = Callers(calls)
    callers.call(200, slow=True)
    await until(lambda: callers.connected[True] > 0)
    callers.call(1, slow=False)
    await until(lambda: callers.connected[False] == 1)
    await callers.let_go()


async def test_who_waits_for_a_connection_is_parked():
    parked = 0

    @contextlib.asynccontextmanager
    async def parking():
        nonlocal parked
        parked += 1
        yield

    found = Calls(Fence(), parking)
    async with found:
        callers = Callers(found)
        callers.call(2 * MOST_CALLS, slow=False)
        await until(lambda: parked == 2 * MOST_CALLS)
        await callers.let_go()


@contextlib.asynccontextmanager
async def listening(port: int, *, hangs_up: bool) -> AsyncIterator[list[int]]:
    """Answer, and yield the ports that calls came from; hang up after each answer, without having said so."""
    callers: list[int] = []

    async def answer(request: web.Request) -> web.Response:
        callers.append(request.transport.get_extra_info("peername")[1])
        if hangs_up:
            asyncio.get_running_loop().call_soon(request.transport.close)
        return web.json_response({})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield callers
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("hangs_up", [False, True])
async def test_who_is_told_something_was_asked_on_the_same_connection_unless_it_is_gone(
    calls, port, hangs_up
):
    async with listening(port, hangs_up=hangs_up) as callers:
        for method in ("GET", "PUT", "PUT"):
            async with calls.kept.request(method, f"http://127.0.0.1:{port}/v1/plan", json={}) as answer:
                assert await answer.json() == {}
    assert len(callers) == 3
    assert len(set(callers)) == (3 if hangs_up else 1)


async def test_connections_are_kept_to_few_coordinators_at_a_time(calls):
    asked = [calls.session(f"10.0.0.{number}", quiet=False) for number in range(40)]
    kept = MOST_CONNECTIONS - MOST_CALLS
    assert asked == [calls.kept] * kept + [calls.single] * (40 - kept)
    assert calls.session("10.0.0.0", quiet=False) is calls.kept, "a connection to it may be there"
    assert calls.session("10.0.0.0", quiet=True) is calls.single
