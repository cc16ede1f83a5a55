"""What all calls to coordinators share: sessions, and a bounded number of connections."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Self

import aiohttp

from gradsieve_operator.cluster.fence import Fence

Parked = Callable[[], AbstractAsyncContextManager[None]]
"""What waits inside of it keeps no worker of the queue from other jobs."""

MOST_CONNECTIONS = 64
_KEPT_SECONDS = 1.0
"""A connection waits for the next call to the same coordinator for so long: one that is told something was
asked just before, and one whose ranks start is asked every half second. Of a job that trains and of which
nothing is expected, none is kept."""

_MOST_KEPT = 24
"""Connections that wait: each holds its buffers, and when a cluster is filled, hundreds of jobs start at a
time."""

MOST_CALLS = MOST_CONNECTIONS - _MOST_KEPT
_MOST_SLOW = 16
"""Of these, for calls that may take their whole time: to coordinators that left the last one without an
answer, and those that wait for ranks to end. So the others never wait for them."""


class Calls:
    """Makes calls to coordinators, some at a time; use it as an asynchronous context manager.

    Args:
        fence: asked before each call that changes anything.
        parked: entered while a call waits or is under way.

    Attributes:
        kept: keeps connections for the calls of one look and of what follows it, and hardly longer.
        single: closes each connection after one call.
    """

    def __init__(self, fence: Fence, parked: Parked) -> None:
        kept = aiohttp.TCPConnector(limit=MOST_CALLS, keepalive_timeout=_KEPT_SECONDS)
        single = aiohttp.TCPConnector(limit=MOST_CALLS, force_close=True)
        self.kept, self.single = (
            aiohttp.ClientSession(connector=connector, request_class=fence.request_class())
            for connector in (kept, single)
        )
        # Host -> when it was last called in `kept`, in that order.
        self._lately: dict[str, float] = {}
        self._parked = parked
        self._slow = asyncio.Semaphore(_MOST_SLOW)
        self._quick = asyncio.Semaphore(MOST_CALLS - _MOST_SLOW)

    async def __aenter__(self) -> Self:
        """Begin."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self.kept.close()
        await self.single.close()

    def session(self, host: str, *, quiet: bool) -> aiohttp.ClientSession:
        """Return what to call ``host`` by: once, if that is ``quiet`` or connections to many others wait."""
        now = time.monotonic()
        while self._lately and now - next(iter(self._lately.values())) > 2 * _KEPT_SECONDS:
            # By then the connection was closed, if nobody has called.
            del self._lately[next(iter(self._lately))]
        if quiet or (host not in self._lately and len(self._lately) >= _MOST_KEPT):
            return self.single
        self._lately.pop(host, None)
        self._lately[host] = now
        return self.kept

    @contextlib.asynccontextmanager
    async def turn(self, *, slow: bool) -> AsyncIterator[None]:
        """Wait for a free connection, outside of the call's own time limit, and hold it meanwhile."""
        async with self._parked(), self._slow if slow else self._quick:
            yield
