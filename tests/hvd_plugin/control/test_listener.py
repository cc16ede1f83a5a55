"""What a port of the coordinator does with callers that are slow, greedy, or of whom nothing is known."""

import asyncio
import contextlib
import ssl

import pytest
from aiohttp import web
from control_job import free_ports
from small_coordinator import make_certificates

from gradsieve_hvd.control.address import Address
from gradsieve_hvd.control.listener import Limits, Listener
from gradsieve_hvd.control.tls import client_context, server_context

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder)
    return folder


@contextlib.asynccontextmanager
async def listening(limits, certificates=None):
    """A port; yields a function that dials it, with a certificate if it has TLS."""

    async def answer(request):
        await request.read()
        return web.Response(text="here")

    application = web.Application(client_max_size=1000)
    application.router.add_route("*", "/", answer)
    (port,) = free_ports(1)
    tls = None if certificates is None else server_context(certificates / "coordinator")
    listener = Listener(application, Address("127.0.0.1", port), tls, limits)
    await listener.start()
    writers = []

    async def dial(*, tls=certificates is not None, source="127.0.0.1"):
        secured = {}
        if tls:
            secured = {"ssl": client_context(certificates / "worker"), "server_hostname": "coordinator"}
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0), **secured)
        writers.append(writer)
        return reader, writer

    try:
        async with asyncio.timeout(30):
            yield dial
    finally:
        for writer in writers:
            writer.transport.abort()
        await listener.close()
        # TLS that was closed on one side goes a moment later.
        await asyncio.sleep(0.05)


async def ask(reader, writer, request=GET):
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    return int(head.split()[1])


async def ended(reader):
    """Wait until the other side has ended the connection."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while await reader.read(1 << 16):
            pass
    return True


def with_and_without_tls(test):
    return pytest.mark.parametrize(
        "secured", [pytest.param(True, id="tls"), pytest.param(False, id="plain")]
    )(test)


@with_and_without_tls
def test_who_trickles_a_request_is_cut_off(certificates, secured):
    async def run():
        limits = Limits(first_seconds=0.2, idle_seconds=0.2)
        async with listening(limits, certificates if secured else None) as dial:
            reader, writer = await dial()
            trickling = asyncio.create_task(trickle(writer))
            assert await ended(reader)
            trickling.cancel()
            # The same after a request that was in order.
            reader, writer = await dial()
            assert await ask(reader, writer) == 200
            trickling = asyncio.create_task(trickle(writer))
            assert await ended(reader)
            trickling.cancel()

    async def trickle(writer):
        for byte in GET[:-1]:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.02)
        while True:
            writer.write(b"x")
            await asyncio.sleep(0.02)

    asyncio.run(run())


@with_and_without_tls
def test_a_request_that_takes_its_time_is_answered(certificates, secured):
    """A body has a deadline of its own; the port's are for connections without a request."""

    async def run():
        limits = Limits(first_seconds=0.2, idle_seconds=0.2)
        async with listening(limits, certificates if secured else None) as dial:
            reader, writer = await dial()
            writer.write(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\na")
            assert await ended((await dial())[0])
            assert await ask(reader, writer, b"b") == 200

    asyncio.run(run())


@with_and_without_tls
def test_headers_and_bodies_that_are_too_long_are_refused(certificates, secured):
    async def run():
        async with listening(Limits(), certificates if secured else None) as dial:
            endless = b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(
                b"X-%d: %s\r\n" % (number, b"y" * 8000) for number in range(1000)
            )
            for request, status in (
                (b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", 400),
                (b"GET /" + b"y" * 100_000 + b" HTTP/1.1\r\n\r\n", 400),
                (b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n" + b"y" * 1001, 413),
            ):
                assert await ask(*await dial(), request) == status
            reader, writer = await dial()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                writer.write(endless)
                await writer.drain()
            assert await ended(reader)
            assert await ask(*await dial()) == 200

    asyncio.run(run())


def test_an_owner_gets_a_few_connections_and_more_when_these_have_closed(certificates):
    async def run():
        async with listening(Limits(per_owner=3), certificates) as dial:
            held = [await dial() for _ in range(3)]
            for one in held:
                assert await ask(*one) == 200
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                assert await ended((await dial())[0])
            for one in held:
                assert await ask(*one) == 200
            for _, writer in held:
                writer.close()
                await writer.wait_closed()
            assert await ask(*await dial()) == 200

    asyncio.run(run())


def test_strangers_keep_nobody_out(certificates):
    async def run():
        limits = Limits(strangers=4, strangers_per_address=2, handshake_seconds=20.0)
        async with listening(limits, certificates) as dial:
            sources = ["127.0.0.1", *(f"127.0.1.{number}" for number in range(1, 11))]
            held = [await dial(tls=False, source=source) for source in sources for _ in range(5)]
            assert await ask(*await dial()) == 200
            closed = [asyncio.create_task(ended(reader)) for reader, _ in held]
            while sum(each.done() for each in closed) < len(held) - limits.strangers:
                await asyncio.wait(
                    [each for each in closed if not each.done()], return_when="FIRST_COMPLETED"
                )
            for each in closed:
                each.cancel()

    asyncio.run(run())


def test_a_handshake_has_a_deadline(certificates):
    async def run():
        async with listening(Limits(handshake_seconds=0.2), certificates) as dial:
            reader, _ = await dial(tls=False)
            assert await ended(reader)

    asyncio.run(run())


def test_on_a_port_without_tls_the_newest_connections_stay():
    async def run():
        async with listening(Limits(strangers=3, strangers_per_address=2)) as dial:
            first = await dial()
            assert await ask(*first) == 200
            held = [await dial() for _ in range(2)]
            assert await ended(first[0])
            for one in held:
                assert await ask(*one) == 200
            # What was closed by the caller does not count any more, whenever that is noticed.
            for _, writer in held:
                writer.close()
                await writer.wait_closed()
            held = [await dial(source=f"127.0.1.{number}") for number in range(3)]
            for one in held:
                assert await ask(*one) == 200

    asyncio.run(run())
