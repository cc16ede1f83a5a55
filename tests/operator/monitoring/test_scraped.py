"""A real Prometheus scrapes a real operator and a real coordinator: panels and alerts have their numbers."""

import asyncio
import contextlib
import json
import re
import tempfile
import time
from pathlib import Path

import horovod_jobs as jobs
import pytest
from control_job import ControlJob
from operator_in_memory import JOB, bind, running, until
from scraper import FILES, Scraper, eventually

DASHBOARD = json.loads((FILES / "dashboard.json").read_text())
QUERIES = [
    pytest.param(target["expr"], id=panel["title"])
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", ())
]
SAMPLE = {
    "generation": 1,
    "stepSeconds": 0.5,
    "waitSeconds": 0.1,
    "wireBytesPerStep": 1000,
    "denseBytesPerStep": 40000,
    "densityPermille": 10,
    "appliedPlanGeneration": 0,
    "ranks": [{"rank": 0, "host": "h0", "stepSeconds": 0.5}],
}
"""As rank 0 sends it, but for step and time."""


async def test_every_panel_and_every_alert_finds_its_numbers(server, port, prometheus, tmp_path):
    pytest.importorskip("mpi4py", reason="NO MPI HERE: mpi4py is not installed")
    with tempfile.TemporaryDirectory(prefix="gs-") as short, contextlib.ExitStack() as stack:
        job = ControlJob(Path(short), ("h0",))
        stack.callback(job.close)
        job.agent("h0", "--once")
        job.coordinator("--hosts", "h0", "--", "sleep", "1000")
        await asyncio.to_thread(job.wait_for, "Running")
        targets = {
            port: {"namespace": "gradsieve-system", "pod": "gradsieve-operator-0"},
            job.read_only_port: {"namespace": "research", "pod": "digits-coordinator-1"},
        }
        async with running(health=f"127.0.0.1:{port}") as operator:
            scraper = Scraper(prometheus, tmp_path, targets)
            stack.callback(scraper.close)

            async def several_samples() -> bool:
                sample = {**SAMPLE, "step": int(time.monotonic()), "time": time.time()}
                status, _ = await asyncio.to_thread(job.call, "POST", "/v1/telemetry", sample, party="h0")
                assert status == 200
                return await scraper.query("count_over_time(gradsieve_step[1m]) > 3") != []

            await eventually(several_samples)
            # Only now, so that what is counted grows between two scrapes.
            server.objects[JOB, "research", "digits"] = jobs.body()
            operator.queue.add(("research", "digits"))
            await until(lambda: len(server.all("v1/pods")) == 3)
            bind(server)
            for query in QUERIES:
                await eventually(
                    lambda query=query: scraper.numbers(query.values[0].replace("$namespace", ".*"))
                )
            named = {name for query in QUERIES for name in re.findall(r"gradsieve_\w+", query.values[0])}
            rules = await scraper.rules()
            named |= {name for rule in rules for name in re.findall(r"gradsieve_\w+", rule["query"])}
            assert named <= await scraper.names(), "something that is not measured"
            assert {rule["health"] for rule in rules} == {"ok"}
