"""A real Prometheus that scrapes what tests serve."""

from __future__ import annotations

import asyncio
import contextlib
import math
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from control_job import free_ports
from manifests import ROOT

FILES = ROOT / "helm/gradsieve/files"


class Scraper:
    """A Prometheus that scrapes every second."""

    def __init__(self, program: str, folder: Path, targets: Mapping[int, Mapping[str, str]]) -> None:
        (self.port,) = free_ports(1)
        static = [
            {"targets": [f"127.0.0.1:{port}"], "labels": dict(labels)} for port, labels in targets.items()
        ]
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
