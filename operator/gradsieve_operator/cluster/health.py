"""Liveness, readiness and metrics, also of a replica that waits to lead; kopf's own begin only afterwards."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from aiohttp import web

from gradsieve_operator import metrics

LONGEST_SECONDS = 180.0
"""What has stood still for so long will not move again by itself."""

UNHEARD_SECONDS = 30.0
"""A replica that has not reached the API server for so long could not take over."""

RECONCILING = "reconciling"
"""The part that only a replica has that leads."""

MOST_CONNECTIONS = 64
_SETTLED_SECONDS = 0.05

Ages = Callable[[], Mapping[str, float]]


@contextlib.asynccontextmanager
async def serving_health(listen: str, ages: Ages, silences: Ages) -> AsyncIterator[None]:
    """Serve ``/healthz``, ``/readyz`` and ``/metrics`` meanwhile.

    The first two answer with a line for each part, and with status 503 if any of them has stood still for
    too long. Who is not well is started again; who is not ready would not be better off for that. Anybody may
    connect: beyond some connections the oldest makes room, so that holding them open neither keeps the
    kubelet out nor costs memory.

    Args:
        listen: address and port, as in ``0.0.0.0:8080``.
        ages: part of the operator -> for how many seconds it has stood still.
        silences: what the operator needs to hear of -> for how many seconds it has not.
    """

    def answer(found: Ages, most: float) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(_request: web.Request) -> web.Response:
            parts = found()
            lines = [f"{part}: {age:.1f} s{' (stalled)' * (age > most)}" for part, age in parts.items()]
            stalled = any(age > most for age in parts.values())
            said = "\n".join([*lines, "stalled" if stalled else "ok", ""])
            return web.Response(status=503 if stalled else 200, text=said)

        return handle

    async def show_metrics(_request: web.Request) -> web.Response:
        return web.Response(body=metrics.exposition(), headers={"Content-Type": metrics.CONTENT_TYPE})

    application = web.Application()
    application.router.add_get("/metrics", show_metrics)
    application.router.add_get("/healthz", answer(ages, LONGEST_SECONDS))
    application.router.add_get("/readyz", answer(silences, UNHEARD_SECONDS))
    runner = web.AppRunner(application, handle_signals=False, access_log=None)
    await runner.setup()

    loop = asyncio.get_running_loop()

    def make_room() -> None:
        assert runner.server is not None
        for oldest in runner.server.connections[:-MOST_CONNECTIONS]:
            oldest.force_close()

    def let_in() -> asyncio.Protocol:
        assert runner.server is not None
        # A little later: connections are accepted in batches, of which the server knows only afterwards.
        loop.call_later(_SETTLED_SECONDS, make_room)
        return runner.server()

    host, _, port = listen.rpartition(":")
    server = await loop.create_server(let_in, host, int(port))
    try:
        yield
    finally:
        server.close()
        await runner.cleanup()
