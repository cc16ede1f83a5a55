"""No job waits for another's network: not for its coordinator's answers, nor for the end of its ranks."""

import asyncio
import base64
import contextlib
import functools
import ssl

import horovod_jobs as jobs
import pytest
from aiohttp import web
from operator_in_memory import JOB, conditions, running, until

from gradsieve_operator import contract
from gradsieve_operator.cluster import operator as module
from gradsieve_operator.cluster.queue import WorkQueue
from gradsieve_operator.placement.cluster import pinned_node

WORKERS = 2
SLOW = [f"slow-{number}" for number in range(2 * WORKERS)]


def context(folder, secret) -> ssl.SSLContext:
    for name, value in secret["data"].items():
        (folder / name).write_bytes(base64.b64decode(value))
    found = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    found.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return found


class SlowCoordinators:
    """Coordinators of several jobs, each with its own address, that leave calls to one path unanswered."""

    def __init__(self, silent: str) -> None:
        self.asked: set[str] = set()
        self._calls: dict[str, web.Request] = {}
        self._silent, self._stack, self._over = silent, contextlib.AsyncExitStack(), asyncio.Event()

    def waiting(self) -> set[str]:
        """The jobs with a call under way that has no answer yet."""
        return {
            job for job, call in self._calls.items() if call.transport and not call.transport.is_closing()
        }

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self._over.set()
        await self._stack.aclose()

    async def add(self, job: str, address: str, port: int, tls: ssl.SSLContext) -> None:
        async def answer(request):
            self.asked.add(job)
            if request.path == self._silent:
                self._calls[job] = request
                await self._over.wait()
            return web.json_response({"state": "Running"})

        application = web.Application()
        application.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, address, port, ssl_context=tls).start()


def submit(server, operator, name: str) -> None:
    server.objects[JOB, "research", name] = jobs.body(jobs.group("worker", 1), name=name)
    operator.queue.add(("research", name))


@pytest.mark.parametrize("silent", [contract.PATH_STATUS, contract.PATH_STOP])
async def test_a_job_starts_while_more_coordinators_than_workers_leave_calls_unanswered(
    server, port, tmp_path, monkeypatch, silent
):
    monkeypatch.setattr(contract, "COORDINATOR_PORT", port)
    monkeypatch.setattr(module, "WorkQueue", functools.partial(WorkQueue, workers=WORKERS))
    async with SlowCoordinators(silent) as coordinators, running() as operator:
        for name in SLOW:
            submit(server, operator, name)
        await until(lambda: len(server.all("v1/pods")) == 2 * len(SLOW))
        for name, pod in server.all("v1/pods").items():
            server.objects["v1/pods", "research", name].patch(
                {"spec": {"nodeName": pinned_node(pod["spec"])}}
            )
        for name in SLOW:
            operator.queue.add(("research", name))
        await until(lambda: all(conditions(server, name)["Admitted"]["reason"] == "Placed" for name in SLOW))
        for number, name in enumerate(SLOW):
            address = f"127.0.0.{10 + number}"
            tls = context(tmp_path, server.all("v1/secrets")[contract.coordinator_secret(name)])
            await coordinators.add(name, address, port, tls)
            leader = server.objects["v1/pods", "research", contract.coordinator_pod(name, 1)]
            leader.patch({"status": {"phase": "Running", "podIP": address}})
        if silent == contract.PATH_STOP:
            await until(lambda: coordinators.asked == set(SLOW))
            for name in SLOW:
                server.objects[JOB, "research", name].patch({"spec": {"suspend": True}})
        await until(lambda: coordinators.waiting() == set(SLOW))
        submit(server, operator, "late")
        await until(lambda: "late-worker-0-1" in server.all("v1/pods"))
