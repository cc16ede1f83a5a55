"""The liveness endpoint. A replica that waits for the Lease has it too; kopf's own begins only afterwards."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web


async def serve_health(listen: str, alive: Callable[[], bool]) -> web.AppRunner:
    """Serve ``/healthz`` until the returned runner is cleaned up.

    Args:
        listen: address and port, as in ``0.0.0.0:8080``.
        alive: whether to answer with 200 rather than 503.
    """

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n") if alive() else web.Response(status=503, text="stalled\n")

    application = web.Application()
    application.router.add_get("/healthz", answer)
    runner = web.AppRunner(application, handle_signals=False, access_log=None)
    await runner.setup()
    host, _, port = listen.rpartition(":")
    await web.TCPSite(runner, host, int(port)).start()
    return runner
