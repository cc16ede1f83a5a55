"""The coordinator's second port: plain HTTP, to look only, for probes, Prometheus and browsers."""

from __future__ import annotations

import os

from aiohttp import web

from gradsieve_hvd.control.api import Decisions
from gradsieve_hvd.control.contract import (
    HEALTH_PATH,
    JOB,
    METRICS_PATH,
    NAMESPACE,
    READY_PATH,
    RUNNING,
    STATUS_PATH,
)
from gradsieve_hvd.control.page import CONTENT_SECURITY_POLICY, page
from gradsieve_hvd.control.status import metrics_text, status_json

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def read_only_application(decisions: Decisions, started_at: list[str]) -> web.Application:
    """Health, readiness, metrics, status and page: nothing has a secret in it, and nothing changes anything.

    Args:
        decisions: whose job is shown.
        started_at: the times at which ranks were started, the last one last.
    """
    name = "/".join(filter(None, (os.environ.get(NAMESPACE), os.environ.get(JOB)))) or "gradsieve job"

    def when() -> str | None:
        return started_at[-1] if started_at else None

    async def health(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_request: web.Request) -> web.Response:
        # An operator that asks seldom hears by this, through the pod's readiness, that it should ask at once.
        state = decisions.job.state
        return web.Response(status=200 if state == RUNNING else 503, text=f"{state}\n")

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=metrics_text(decisions.job), headers={"Content-Type": _METRICS_TYPE})

    async def status(_request: web.Request) -> web.Response:
        return web.json_response(status_json(decisions.job, when()))

    async def show(_request: web.Request) -> web.Response:
        return web.Response(
            text=page(decisions.job, name, when()),
            content_type="text/html",
            headers={"Content-Security-Policy": CONTENT_SECURITY_POLICY},
        )

    application = web.Application(client_max_size=1024)
    application.add_routes(
        [
            web.get(HEALTH_PATH, health),
            web.get(READY_PATH, ready),
            web.get(METRICS_PATH, metrics),
            web.get(STATUS_PATH, status),
            web.get("/", show),
        ]
    )
    return application
