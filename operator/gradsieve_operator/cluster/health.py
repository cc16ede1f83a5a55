"""The liveness endpoint. A replica that waits for the Lease has it too; kopf's own begins only afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aiohttp import web

LONGEST_SECONDS = 180.0
"""What has stood still for so long will not move again by itself."""


async def serve_health(listen: str, ages: Callable[[], Mapping[str, float]]) -> web.AppRunner:
    """Serve ``/healthz`` until the returned runner is cleaned up.

    It answers with one line for each part, and with status 503 if any of them has stood still for too long.

    Args:
        listen: address and port, as in ``0.0.0.0:8080``.
        ages: part of the operator -> for how many seconds it has stood still.
    """

    async def answer(_request: web.Request) -> web.Response:
        found = ages()
        lines = [
            f"{part}: {age:.1f} s{' (stalled)' * (age > LONGEST_SECONDS)}" for part, age in found.items()
        ]
        stalled = any(age > LONGEST_SECONDS for age in found.values())
        return web.Response(
            status=503 if stalled else 200, text="\n".join([*lines, "stalled" if stalled else "ok", ""])
        )

    application = web.Application()
    application.router.add_get("/healthz", answer)
    runner = web.AppRunner(application, handle_signals=False, access_log=None)
    await runner.setup()
    host, _, port = listen.rpartition(":")
    await web.TCPSite(runner, host, int(port)).start()
    return runner
