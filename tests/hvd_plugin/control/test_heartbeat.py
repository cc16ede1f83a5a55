"""Either side may stand still for a while, but not for ever; real WebSockets, with short periods."""

import asyncio
import contextlib
import time

import aiohttp
import pytest
from aiohttp import web

from gradsieve_hvd.control import heartbeat as module
from gradsieve_hvd.control.heartbeat import Heartbeat

PERIOD, PINGS = 0.2, 3


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(module, "PING_SECONDS", PERIOD)
    monkeypatch.setattr(module, "PINGS", PINGS)


@contextlib.asynccontextmanager
async def connected(**client):
    """Yield the server's end, which autoping leaves to its heartbeat, and the client's."""
    ends, over = asyncio.Queue(), asyncio.Event()

    async def serve(request):
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        ends.put_nowait((socket, request.transport))
        await over.wait()
        request.transport.abort()
        return socket

    application = web.Application()
    application.add_routes([web.get("/", serve)])
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        host, port = runner.addresses[0]
        socket = await session.ws_connect(f"http://{host}:{port}/", **client)
        yield (await ends.get())[0], socket
        over.set()
        await socket.close()
    await runner.cleanup()


async def listen(beat, said):
    async for message in beat.messages():
        said.append(message.data)


async def test_two_quiet_sides_stay_together_and_what_they_say_goes_through():
    async with connected(autoping=False) as ends:
        beats = [Heartbeat(end) for end in ends]
        said = [], []
        listening = [asyncio.create_task(listen(*pair)) for pair in zip(beats, said, strict=True)]
        await asyncio.sleep(3 * PINGS * PERIOD)
        await ends[0].send_str("down")
        await ends[1].send_str("up")
        await asyncio.sleep(PERIOD)
        assert said == (["up"], ["down"])
        assert not any(task.done() for task in listening)
        await ends[1].close()
        await asyncio.wait(listening, timeout=5)
        assert [beat.silent for beat in beats] == [False, False]


async def test_a_side_that_does_not_answer_is_given_up_after_that_many_periods():
    async with connected(autoping=False) as (server, _):
        beat, began = Heartbeat(server), time.monotonic()
        await listen(beat, [])
        assert beat.silent
        assert PINGS * PERIOD <= time.monotonic() - began < PINGS * PERIOD + 2.0
        assert beat.heard == pytest.approx(began, abs=0.1)


async def test_a_side_that_stands_still_for_one_period_less_is_not():
    async with connected(autoping=False) as (server, client):
        beat = Heartbeat(server)
        listening = asyncio.create_task(listen(beat, []))
        for _ in range(3):
            await asyncio.sleep((PINGS - 1.5) * PERIOD)
            for _ in range(PINGS - 1):
                await client.pong((await client.receive()).data)
        assert not listening.done()
        listening.cancel()


async def test_that_this_side_stood_still_is_not_held_against_the_other_one():
    async with connected() as (server, _):
        beat = Heartbeat(server)
        listening = asyncio.create_task(listen(beat, []))
        await asyncio.sleep(PERIOD)
        time.sleep(3 * PINGS * PERIOD)  # noqa: ASYNC251 - the event loop shall stand still
        await asyncio.sleep(PERIOD)
        assert not listening.done()
        listening.cancel()


async def test_an_answer_tells_when_it_was_asked_for():
    answered = []
    async with connected(autoping=False) as (server, client):
        listening = asyncio.create_task(listen(Heartbeat(server, answered.append), []))
        ping = await client.receive()
        received = time.monotonic()
        await asyncio.sleep(2 * PERIOD)
        await client.pong(ping.data)
        await asyncio.sleep(0.5 * PERIOD)
        assert len(answered) == 1
        assert answered[0] <= received
        listening.cancel()
