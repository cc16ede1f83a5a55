"""Ranks that were well a moment ago are not asked about before they are told what their author wants."""

import asyncio
from dataclasses import replace

import horovod_jobs as jobs
import pytest
from obedient_coordinator import KEY, training
from operator_in_memory import JOB, running, until

from gradsieve_operator import contract
from gradsieve_operator.adapt import Window, Work
from gradsieve_operator.cluster.heard import Heard
from gradsieve_operator.decide import CoordinatorStatus, Pace, Pod

ASK, TELL = f"GET {contract.PATH_STATUS}", f"PUT {contract.PATH_PLAN}"
WELL = CoordinatorStatus(state=contract.STATE_RUNNING, telemetry_age=3.0)
LEADER = Pod("digits-coordinator-1", "a", contract.ROLE_COORDINATOR, contract.COORDINATOR_HOST, ready=True)


async def settled(calls: list[str]) -> None:
    """Wait until nothing of what has just happened is looked at any more."""
    before = -1
    while len(calls) != before:
        before = len(calls)
        await asyncio.sleep(0.5)


@pytest.mark.parametrize(
    ("ready", "adaptation", "first"),
    [
        pytest.param("True", {}, TELL, id="all is well"),
        pytest.param("False", {}, ASK, id="its pod is not ready"),
        pytest.param("True", {"adaptation": {"enabled": True}}, TELL, id="what is measured decides later"),
    ],
)
async def test_a_new_density_comes_first(server, port, tmp_path, monkeypatch, ready, adaptation, first):
    monkeypatch.setattr(contract, "COORDINATOR_PORT", port)
    server.objects[JOB, *KEY] = jobs.body(
        compression={"algorithm": "TopK", "densityPermille": 10}, **adaptation
    )
    calls = []
    # While nothing happens it is asked every three seconds: there is no sample yet.
    pace = Pace(expecting=3.0)
    async with (
        running(pace=pace) as operator,
        training(server, operator, tmp_path, port, calls) as plans,
    ):
        leader = server.objects["v1/pods", "research", contract.coordinator_pod("digits", 1)]
        leader.patch({"status": {"conditions": [{"type": "Ready", "status": ready}]}})
        before = calls.count(ASK)
        operator.queue.add(KEY)
        await until(lambda: calls.count(ASK) > before)
        await settled(calls)
        calls.clear()
        server.objects[JOB, *KEY].patch(
            {
                "metadata": {"generation": 2},
                "spec": {"compression": {"algorithm": "TopK", "densityPermille": 20}},
            }
        )
        await until(lambda: plans[-1]["densityPermille"] == 20)
        assert calls[0] == first
        # And then it is asked whether ranks follow.
        await until(lambda: calls.index(TELL) < len(calls) - 1 and calls[-1] == ASK)


@pytest.mark.parametrize(
    ("status", "leader", "seconds", "will_do"),
    [
        pytest.param(WELL, LEADER, 10.0, True, id="well a moment ago"),
        pytest.param(WELL, LEADER, 100.0, False, id="long ago"),
        pytest.param(WELL, replace(LEADER, uid="b"), 10.0, False, id="another pod"),
        pytest.param(WELL, replace(LEADER, ready=False), 10.0, False, id="not ready"),
        pytest.param(replace(WELL, missing=("worker-0",)), LEADER, 10.0, False, id="somebody was missing"),
        pytest.param(replace(WELL, state=contract.STATE_LOST), LEADER, 10.0, False, id="ranks were lost"),
        pytest.param(
            replace(WELL, state=contract.STATE_SUCCEEDED), LEADER, 10.0, False, id="the program had ended"
        ),
    ],
)
def test_only_what_was_well_a_moment_ago_need_not_be_asked(status, leader, seconds, will_do):
    assert Heard("a", status, 1000.0).will_do(leader, 1000.0 + seconds) == will_do


def test_a_sample_grows_older_while_nobody_asks_for_the_next():
    heard = Heard("a", WELL, 1000.0)
    assert heard.by(1020.0).telemetry_age == pytest.approx(23.0)
    window = Window(1, 32, 64.0, 3.0, 0.11, 0.0, 0.01, Work(0.1, 0.1, 0.1, 0.1))
    measured = Heard("a", replace(WELL, window=window), 1000.0)
    assert measured.by(1020.0).window.age == pytest.approx(23.0)
    assert Heard("a", replace(WELL, telemetry_age=None), 0.0).by(9.0).telemetry_age is None
