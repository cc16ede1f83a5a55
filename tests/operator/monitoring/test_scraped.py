"""A real Prometheus scrapes a real operator and a real coordinator: panels and alerts have their numbers."""

import asyncio
import contextlib
import json
import math
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import horovod_jobs as jobs
import pytest
import yaml
from control_job import ControlJob, free_ports
from manifests import ROOT
from operator_in_memory import JOB, bind, running, until

FILES = ROOT / "helm/gradsieve/files"
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


class Scraper:
    """A Prometheus that scrapes every second."""

    def __init__(self, program: str, folder: Path, targets: dict[int, dict[str, str]]) -> None:
        (self.port,) = free_ports(1)
        static = [{"targets": [f"127.0.0.1:{port}"], "labels": labels} for port, labels in targets.items()]
        scrape = {"job_name": "tests", "scrape_interval": "1s", "static_configs": static}
        file = folder / "prometheus.yaml"
        rules = {"rule_files": [str(FILES / "alerts.yaml")], "global": {"evaluation_interval": "1s"}}
        file.write_text(yaml.safe_dump({**rules, "scrape_configs": [scrape]}))
        command = [program, f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
        self._log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{self.port}"], stdout=self._log, stderr=self._log
        )

    async def query(self, expression: str) -> list[float]:
        """Return the values of an expression."""
        found = await self._get("query", query=expression)
        return [float(sample["value"][1]) for sample in found["result"]]

    async def numbers(self, expression: str) -> list[float]:
        """Return the values of an expression; none as long as one of them is not a number."""
        values = await self.query(expression)
        return [] if any(map(math.isnan, values)) else values

    async def names(self) -> set[str]:
        """Return the names of what was scraped."""
        return set(await self._get("label/__name__/values"))

    async def rules(self) -> list[dict[str, Any]]:
        """Return all alerting rules as they were last evaluated."""
        return [rule for group in (await self._get("rules"))["groups"] for rule in group["rules"]]

    async def _get(self, path: str, **asked: str) -> Any:
        where = f"http://127.0.0.1:{self.port}/api/v1/{path}"
        async with aiohttp.ClientSession() as session, session.get(where, params=asked) as answer:
            body = await answer.json()
        assert body["status"] == "success", body
        return body["data"]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)
        self._log.close()


async def eventually(look: Any, seconds: float = 30.0) -> Any:
    """Return what ``look`` returns as soon as that is something."""
    until, found = time.monotonic() + seconds, None
    while not found:
        assert time.monotonic() < until, "not scraped in time"
        with contextlib.suppress(aiohttp.ClientError):
            found = await look()
        await asyncio.sleep(0.2)
    return found


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
