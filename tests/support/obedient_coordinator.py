"""A job on the API server in memory whose ranks train, and follow each plan at once."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web
from operator_in_memory import bind, conditions, recorded, until

from gradsieve_operator import contract
from gradsieve_operator.cluster.operator import Operator

KEY = ("research", "digits")


@contextlib.asynccontextmanager
async def training(
    server: Any,
    operator: Operator,
    folder: Path,
    port: int,
    calls: list[str] | None = None,
    answers: asyncio.Event | None = None,
) -> AsyncIterator[list[dict[str, Any]]]:
    """Start the pods of the job with `KEY`, until its ranks follow the first plan; yields its plans.

    Args:
        server: has the job.
        operator: that works on it, and takes ``port`` for that of all coordinators.
        folder: takes the coordinator's certificates.
        port: that it listens at.
        calls: takes method and path of each call.
        answers: whether calls are answered; while it is not set they wait.
    """
    await until(lambda: len(server.all("v1/pods")) == 3)
    bind(server)
    operator.queue.add(KEY)
    await until(lambda: conditions(server).get("Admitted", {}).get("reason") == "Placed")
    async with _answering(server, folder, port, [] if calls is None else calls, answers) as plans:
        leader = server.objects["v1/pods", "research", contract.coordinator_pod("digits", 1)]
        leader.patch({"status": {"phase": "Running", "podIP": "127.0.0.1"}})
        operator.queue.add(KEY)
        await until(lambda: recorded(server).running and recorded(server).plan_generation == 1)
        await until(lambda: conditions(server)["PlanConverged"]["status"] == "True")
        yield plans


@contextlib.asynccontextmanager
async def _answering(
    server: Any, folder: Path, port: int, calls: list[str], answers: asyncio.Event | None
) -> AsyncIterator[list[dict[str, Any]]]:
    known: dict[str, Any] = {"roster": {"generation": 0}}
    plans: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        calls.append(f"{request.method} {request.path}")
        if answers is not None:
            await answers.wait()
        if request.method == "PUT":
            body = await request.json()
            if request.path == contract.PATH_PLAN:
                plans.append(body)
            else:
                known["roster"] = body
        plan = plans[-1]["generation"] if plans else 0
        return web.json_response(
            {
                "state": contract.STATE_RUNNING,
                "generation": known["roster"]["generation"],
                "plan": {"generation": plan, "appliedGeneration": plan},
            }
        )

    for name, value in server.all("v1/secrets")[contract.coordinator_secret("digits")]["data"].items():
        (folder / name).write_bytes(base64.b64decode(value))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
        yield plans
    finally:
        await runner.cleanup()
