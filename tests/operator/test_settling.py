"""While many jobs are due, what nothing depends on is remembered, and written once it has settled."""

import contextlib

import horovod_jobs as jobs
import pytest
from obedient_coordinator import KEY, training
from operator_in_memory import JOB, conditions, recorded, running, until
from virtual_cluster import Crash, VirtualCluster

from gradsieve_operator import contract
from gradsieve_operator import decide as d
from gradsieve_operator.decide import Pace


def status_writes(server) -> int:
    return sum(write.endswith("/status") for write in server.writes)


def change_density(server, density: int) -> None:
    change = {"algorithm": "TopK", "densityPermille": density}
    server.objects[JOB, *KEY].patch({"spec": {"compression": change}})


@pytest.mark.parametrize(("settling", "most"), [(0.0, 6), (1.5, 1)], ids=["seldom busy", "busy"])
async def test_while_it_is_busy_plans_are_sent_at_once_and_written_when_ranks_follow_the_last(
    server, port, tmp_path, monkeypatch, settling, most
):
    monkeypatch.setattr(contract, "COORDINATOR_PORT", port)
    body = jobs.body(compression={"algorithm": "TopK", "densityPermille": 10})
    server.objects[JOB, *KEY] = body
    pace = Pace(settling=settling, following=0.0)
    async with running(pace=pace) as operator, training(server, operator, tmp_path, port) as plans:
        before = status_writes(server)
        for density in (20, 30, 40):
            change_density(server, density)
            operator.queue.add(KEY, asked=True)
            await until(lambda density=density: plans[-1]["densityPermille"] == density)
        await until(lambda: recorded(server).plan_generation == 4)
        await until(lambda: conditions(server)["PlanConverged"]["message"].endswith("plan 4"))
        assert [each["generation"] for each in plans] == [1, 2, 3, 4]
        assert 1 <= status_writes(server) - before <= most


async def test_nothing_is_held_back_for_longer_than_that(server):
    server.objects[JOB, *KEY] = jobs.body(suspend=True)
    async with running(pace=Pace(settling=0.3)):
        await until(lambda: conditions(server).get("Suspended", {}).get("status") == "True")


@pytest.mark.parametrize("taken_back", [False, True])
def test_a_plan_that_was_sent_by_an_operator_that_was_killed_before_it_recorded_it_is_followed_by_the_next(
    taken_back,
):
    it = VirtualCluster(
        jobs.body(compression={"algorithm": "TopK", "densityPermille": 10}), {"n0": 2, "n1": 2}, length=10_000
    )
    it.live(20)
    assert it.leader()[1].plan == it.progress.plan_generation == 1
    it.body["spec"]["compression"]["densityPermille"] = 20
    with contextlib.suppress(Crash):
        it.operate(crash_at=1)
    assert (it.leader()[1].plan, it.progress.plan_generation) == (2, 1)
    if taken_back:
        it.body["spec"]["compression"]["densityPermille"] = 10
    [sent] = [action for action in it.operate().actions if isinstance(action, d.PutPlan)]
    assert (sent.plan["generation"], sent.plan["densityPermille"]) == (3, 10 if taken_back else 20)
    assert (it.leader()[1].plan, it.progress.plan_generation) == (3, 3)
    assert not it.operate().actions
