"""What all calls to coordinators share: a session, and a bounded number of connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import aiohttp

from gradsieve_operator.cluster.fence import Fence

Parked = Callable[[], AbstractAsyncContextManager[None]]
"""What waits inside of it keeps no worker of the queue from other jobs."""

MOST_CONNECTIONS = 64
_KEPT_SECONDS = 1.0
"""A connection waits for the next call to the same coordinator for so long: one that is told something was
asked just before, and one whose ranks start is asked every half second. Kept until the next call of a job
that trains, connections to a thousand coordinators would hold hundreds of MiB."""

_MOST_SLOW = 16
"""Of these, for calls that may take their whole time: to coordinators that left the last one without an
answer, and those that wait for ranks to end. So the others never wait for them."""


class Calls:
    """Makes calls to coordinators, some at a time; close the session in the end.

    Args:
        fence: asked before each call that changes anything.
        parked: entered while a call waits or is under way.

    Attributes:
        session: keeps a connection for the calls of one look, and hardly longer.
    """

    def __init__(self, fence: Fence, parked: Parked) -> None:
        connector = aiohttp.TCPConnector(limit=MOST_CONNECTIONS, keepalive_timeout=_KEPT_SECONDS)
        self.session = aiohttp.ClientSession(connector=connector, request_class=fence.request_class())
        self._parked = parked
        self._slow = asyncio.Semaphore(_MOST_SLOW)
        self._quick = asyncio.Semaphore(MOST_CONNECTIONS - _MOST_SLOW)

    @contextlib.asynccontextmanager
    async def turn(self, *, slow: bool) -> AsyncIterator[None]:
        """Wait for a free connection, outside of the call's own time limit, and hold it meanwhile."""
        async with self._parked(), self._slow if slow else self._quick:
            yield
