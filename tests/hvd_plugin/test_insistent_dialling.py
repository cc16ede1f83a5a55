"""A first packet that is lost does not hold an agent up: it dials again before the kernel would."""

import asyncio
import socket
from pathlib import Path

import aiohttp
import pytest

from gradsieve_hvd.control.dialling import insistent_connector

SYN_SENT, DEADLINE = "02", 60.0


@pytest.fixture
def full():
    """A listener whose queue is full (with a connection that has ended): the kernel drops what comes."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        socket.create_connection(listener.getsockname()).close()
        yield listener


def unanswered(port: int) -> int:
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(line[2].endswith(f":{port:04X}") and line[3] == SYN_SENT for line in lines)


async def dial(port: int) -> str:
    async with (
        aiohttp.ClientSession(connector=insistent_connector()) as session,
        session.get(f"http://localhost:{port}") as answer,
    ):
        return await answer.text()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    if await reader.read(1000):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
    writer.close()
    await writer.wait_closed()


def test_several_attempts_are_under_way_while_none_is_answered_and_the_first_that_is_counts(full):
    async def scenario() -> str:
        port = full.getsockname()[1]
        dialled = asyncio.create_task(dial(port))
        async with asyncio.timeout(DEADLINE):
            while unanswered(port) < 3:  # noqa: ASYNC110 - the kernel tells nobody
                await asyncio.sleep(0.01)
            async with await asyncio.start_server(answer, sock=full):
                return await dialled

    assert asyncio.run(scenario()) == "hello"


def test_a_port_where_nobody_listens_is_an_error_at_once(unused_tcp_port):
    async def scenario() -> None:
        async with asyncio.timeout(DEADLINE):
            await dial(unused_tcp_port)

    with pytest.raises(aiohttp.ClientConnectorError, match="Connect call failed"):
        asyncio.run(scenario())
