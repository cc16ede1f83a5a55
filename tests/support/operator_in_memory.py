"""The operator in this process, on an API server in memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any

import horovod_jobs

from gradsieve_operator.cluster.operator import Operator
from gradsieve_operator.cluster.options import Options
from gradsieve_operator.decide import Progress
from gradsieve_operator.status import recall, record

JOB = "gradsieve.io/v1alpha1/horovodjobs"


@contextlib.asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Operator]:
    """Run it with ``options`` of `Options`."""
    operator = Operator(Options(**options))
    await operator.start()
    try:
        yield operator
    finally:
        await operator.stop()


WOKEN_BY_EVENTS_ONLY = {"_RESYNC_SECONDS": 3600.0}
"""Keeps it from looking at all jobs every five minutes."""


@contextlib.asynccontextmanager
async def running_process(
    constants: Mapping[str, float] | None = None, **variables: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run it as its Deployment does, as a process of its own; its words are the process' output.

    Args:
        constants: of the module `operator`, with other values.
        variables: further ones of its environment.
    """
    command = ["-m", "kopf"]
    if constants:
        lines = [
            "import kopf.cli",
            "import gradsieve_operator.cluster.operator as module",
            *(f"module.{name} = {value}" for name, value in constants.items()),
            "kopf.cli.main()",
        ]
        command = ["-c", "\n".join(lines)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *command, "run", "--all-namespaces", "--standalone", "-m", "gradsieve_operator"),
        env={
            **os.environ,
            "GRADSIEVE_OPERATOR_NAMESPACE": "system",
            "GRADSIEVE_OPERATOR_POD": "one",
            **variables,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def until(state: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until ``state`` holds."""
    for _ in range(round(seconds / 0.02)):
        if state():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("not reached in time")


def submit(server: Any, name: str, workers: int, **spec: Any) -> None:
    """Make a job whose workers need nearly a node each: three pods in all find places, one on each."""
    nearly = {"resources": {"requests": {"cpu": "3"}}}
    body = horovod_jobs.body(horovod_jobs.group("worker", workers, container=nearly), name=name, **spec)
    server.objects[JOB, "research", name] = body


def admitted(server: Any, name: str) -> str:
    """Return why a job has its places, or has none; empty while nothing is said."""
    return conditions(server, name).get("Admitted", {}).get("reason", "")


def conditions(server: Any, name: str = "digits") -> dict[str, dict[str, Any]]:
    """Return the conditions of a job by their type."""
    found = server.all(JOB).get(name, {}).get("status", {}).get("conditions", [])
    return {condition["type"]: condition for condition in found}


def recorded(server: Any, name: str = "digits") -> Progress:
    """Return what the operator has recorded of a job."""
    return recall(server.all(JOB).get(name, {}).get("status", {}))


def change_record(server: Any, name: str = "digits", **values: Any) -> None:
    """Put ``values`` of `Progress` into the operator's record of a job."""
    changed = record(replace(recorded(server, name), **values))
    server.objects[JOB, "research", name].patch({"status": changed})


def bind(server: Any) -> None:
    """Do as the scheduler does."""
    for name, pod in server.all("v1/pods").items():
        terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        node = terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
        server.objects["v1/pods", "research", name].patch({"spec": {"nodeName": node}})
