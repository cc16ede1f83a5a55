"""The administrator's client of the simulated cluster: the operator's own, with another identity."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import TypeVar

from gradsieve_operator.cluster.access import Access
from gradsieve_operator.cluster.api import Api
from gradsieve_operator.errors import ApiError
from gradsieve_operator.resources import Manifest

_AT_ONCE = 16
_GONE, _PAUSE_SECONDS = 410, 0.2
T = TypeVar("T")


def client(server: str, ca: Path, certificate: Path, key: Path) -> Api:
    """Return a client of the API at ``server``."""
    tls = ssl.create_default_context(cafile=str(ca))
    tls.load_cert_chain(certificate, key)
    return Api(Access(server, tls, dict))


async def each(items: Iterable[T], work: Callable[[T], Awaitable[object]]) -> None:
    """Do ``work`` for all items, some at a time."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(item: T) -> None:
        async with turns:
            await work(item)

    async with asyncio.TaskGroup() as group:
        for item in items:
            group.create_task(one(item))


async def follow(api: Api, where: str, **query: str) -> AsyncIterator[Manifest]:
    """Yield an event for each object of a collection, then whatever happens to them, for ever.

    Raises:
        ApiError: the server does not know that version of the collection any more.
    """
    version = "0"
    async for page in api.pages(where, **query):
        version = page["metadata"]["resourceVersion"]
        for item in page["items"]:
            yield {"type": "ADDED", "object": item}
    while True:
        try:
            async for event in api.watch(where, version, **query):
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    yield event
        except ApiError as error:
            if error.status == _GONE:
                raise
            # While nothing happens the server may be silent for longer than a watch is waited for.
            await asyncio.sleep(_PAUSE_SECONDS)
