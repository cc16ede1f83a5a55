"""A real Prometheus scrapes a real operator and a real coordinator: panels and alerts have their numbers."""

import asyncio
import contextlib
import json
import re
import tempfile
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
TRAINING = """
import time
import horovod.torch as hvd, torch
import gradsieve_hvd
hvd.init()
torch.set_num_threads(1)
model = torch.nn.Linear(200, 100)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1e-3),
    named_parameters=model.named_parameters(),
    compression=gradsieve_hvd.Compression.topk(0.01, min_elements=1000),
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
while True:
    optimizer.zero_grad()
    loss = model(torch.randn(8, 200)).square().mean()
    loss.backward()
    optimizer.step()
    gradsieve_hvd.report(loss=loss)
    time.sleep(0.05)
"""


async def test_every_panel_and_every_alert_finds_its_numbers(server, port, prometheus, tmp_path):
    pytest.importorskip("horovod", reason="NO HOROVOD HERE: `gradsieve build-horovod` builds it")
    with tempfile.TemporaryDirectory(prefix="gs-") as short, contextlib.ExitStack() as stack:
        job = ControlJob(Path(short), ("h0",))
        stack.callback(job.close)
        job.agent("h0", "--once", slots=2)
        job.coordinator("--hosts", "h0:2", "--", "python", "-c", TRAINING)
        await asyncio.to_thread(job.wait_for, "Running")
        targets = {
            port: {"namespace": "gradsieve-system", "pod": "gradsieve-operator-0"},
            job.read_only_port: {"namespace": "research", "pod": "digits-coordinator-1"},
        }
        async with running(health=f"127.0.0.1:{port}") as operator:
            scraper = Scraper(prometheus, tmp_path, targets)
            stack.callback(scraper.close)

            async def several_samples() -> bool:
                return await scraper.query("changes(gradsieve_step[1m]) > 2") != []

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
