"""Whether this replica may still write: asked at the last moment before each request leaves."""

from __future__ import annotations

from collections.abc import Callable

import aiohttp
from aiohttp.connector import Connection

_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_LEASES = "/apis/coordination.k8s.io/"


class NotLeading(aiohttp.ClientError):
    """A write was not sent: the Lease was not renewed lately, so that another replica may act already.

    To callers it is one more call that has failed before it arrived.
    """


class Fence:
    """Holds back writes, to API server and coordinators alike, once this replica may not lead any more.

    A process that is stopped and goes on, or whose machine sleeps, has decided by a world that is gone. What
    it had sent before, and the moment between asking and sending, remain: that the status is written only in
    the version that was seen, and that surplus pods are deleted, is for these.

    Attributes:
        may_write: says whether to send; true for whoever needs no Lease.
    """

    def __init__(self) -> None:
        self.may_write: Callable[[], bool] = lambda: True

    def request_class(self) -> type[aiohttp.ClientRequest]:
        """Return the class of the requests of a session that is to be fenced."""
        fence = self

        class Fenced(aiohttp.ClientRequest):
            async def send(self, conn: Connection) -> aiohttp.ClientResponse:
                """Send, now that there is a connection and nothing is left to wait for."""
                reads = self.method in _READS or _LEASES in self.url.path
                if not reads and not fence.may_write():
                    raise NotLeading(
                        f"{self.method} {self.url.path}: not sent, the Lease was not renewed lately"
                    )
                return await super().send(conn)

        return Fenced
