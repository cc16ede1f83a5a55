"""What a connection of the operator holds while nothing comes: there may be a hundred of them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tracemalloc
from asyncio import sslproto

import pytest

from gradsieve_operator.cluster.tls import read_by_little


@pytest.fixture
def as_others_have_them():
    """Have the buffers that asyncio has by itself, here at the beginning and for other tests at the end."""
    before, sslproto.SSLProtocol.max_size = sslproto.SSLProtocol.max_size, 1 << 18
    yield
    sslproto.SSLProtocol.max_size = before


async def held_by_a_connection() -> int:
    """Return the bytes that are allocated for a connection whose other side says nothing."""
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda _, other: accepted.put_nowait(other), "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        context = ssl.create_default_context()
        tracemalloc.start()
        try:
            connecting = asyncio.create_task(asyncio.open_connection(host, port, ssl=context))
            other = await accepted.get()
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        other.close()
        with contextlib.suppress(ConnectionError):
            await connecting
        return held


@pytest.mark.usefixtures("as_others_have_them")
def test_a_connection_of_the_operator_holds_less_than_those_of_others_by_200_kib():
    asyncio.run(held_by_a_connection())  # what is made once
    others = asyncio.run(held_by_a_connection())
    read_by_little()
    assert asyncio.run(held_by_a_connection()) < others - (200 << 10)
