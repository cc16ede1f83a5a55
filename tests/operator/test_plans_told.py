"""An Event and a line for machines tell that ranks follow a new plan, however often the status is written."""

import json

import horovod_jobs as jobs
import pytest
from obedient_coordinator import KEY, training
from operator_in_memory import JOB, conditions, running, until

from gradsieve_operator import contract
from gradsieve_operator.decide import Pace


def told(server) -> list[str]:
    events = server.all("v1/events").values()
    return [event["message"] for event in events if event["reason"] == "Applied"]


def status_writes(server) -> int:
    return sum(write.endswith("/status") for write in server.writes)


@pytest.mark.parametrize(
    ("following", "writes"),
    [pytest.param(0.0, 2, id="sending it is written, too"), pytest.param(10.0, 1, id="written once")],
)
async def test_each_density_that_ranks_follow_is_told_by_one_event_and_one_line(
    server, port, tmp_path, monkeypatch, stream, following, writes
):
    monkeypatch.setattr(contract, "COORDINATOR_PORT", port)
    server.objects[JOB, *KEY] = jobs.body(compression={"algorithm": "TopK", "densityPermille": 10})
    pace = Pace(expecting=0.1, following=following)
    async with running(pace=pace) as operator, training(server, operator, tmp_path, port):
        await until(lambda: len(told(server)) == 1)
        for generation, density in enumerate((20, 30), start=2):
            before = status_writes(server)
            change = {"algorithm": "TopK", "densityPermille": density}
            server.objects[JOB, *KEY].patch({"spec": {"compression": change}})
            operator.queue.add(KEY, asked=True)
            said = f"all ranks follow plan {generation}"
            await until(lambda said=said: conditions(server)["PlanConverged"]["message"] == said)
            await until(lambda generation=generation: len(told(server)) == generation)
            assert status_writes(server) - before == writes
    assert told(server) == [f"all ranks follow plan {generation}" for generation in (1, 2, 3)]
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    followed = [line for line in lines if (line["condition"], line["reason"]) == ("PlanConverged", "Applied")]
    assert [line["message"] for line in followed] == told(server)


async def test_looks_at_a_job_whose_plan_stays_tell_nothing(server, port, tmp_path, monkeypatch):
    monkeypatch.setattr(contract, "COORDINATOR_PORT", port)
    server.objects[JOB, *KEY] = jobs.body(compression={"algorithm": "TopK", "densityPermille": 10})
    async with running() as operator, training(server, operator, tmp_path, port) as plans:
        await until(lambda: len(told(server)) == 1)
        # Another status, of the same plan.
        server.objects["v1/pods", "research", contract.worker_pod("digits", "worker", 0, 1)].patch(
            {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        )
        operator.queue.add(KEY)
        await until(lambda: server.all(JOB)["digits"]["status"].get("ready") == 1)
        assert len(plans) == 1
    assert len(told(server)) == 1
