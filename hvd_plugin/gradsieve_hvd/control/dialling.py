"""How an agent connects to its coordinator: insistently, because a new pod's first packets are often lost."""

from __future__ import annotations

import socket

import aiohttp
from aiohttp.abc import ResolveResult

_ATTEMPTS = 4
_BETWEEN_SECONDS = 0.2


class _Repeated(aiohttp.ThreadedResolver):
    """Names every address several times; to be tried one shortly after the other, the first answer wins."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return _ATTEMPTS * await super().resolve(host, port, family)


def insistent_connector() -> aiohttp.TCPConnector:
    """Return what dials a name four times, 0.2 s apart, while no attempt is answered.

    Whatever enforces a cluster's network policies drops what comes from a new pod until it knows the pod's
    address, and the kernel repeats a lost SYN only after a second: most agents of a gang waited for that one.
    Names are looked up every time, since a coordinator that was replaced has another address.
    """
    return aiohttp.TCPConnector(
        resolver=_Repeated(), happy_eyeballs_delay=_BETWEEN_SECONDS, use_dns_cache=False
    )
