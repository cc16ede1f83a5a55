"""A program that can change its mode gets the one that is asked for, or that measurements call for."""

import horovod_jobs as jobs
import pytest
from virtual_cluster import VirtualCluster

from gradsieve_operator import decide as d
from gradsieve_operator.adapt import Window, Work
from gradsieve_operator.status import job_status, recall, record

ADAPTATION = {"enabled": True, "intervalSeconds": 15, "cooldownSeconds": 30, "minSamples": 5}
CAN = ("Synchronous", "Balanced", "Local")


class Training:
    """Ranks need 0.1 s for a step, the slowest ``slow`` times as much, and ``link`` seconds to exchange."""

    def __init__(self, modes=CAN, slow=1.0, link=0.0, **spec):
        self.it = VirtualCluster(jobs.body(**spec), {"n0": 4}, length=10**6)
        self.it.modes, self.it.measure = modes, self.measured
        self.slow, self.link, self.status = slow, link, {}

    @property
    def plans(self):
        return [each.plan for said in self.it.said for each in said.actions if isinstance(each, d.PutPlan)]

    @property
    def modes(self):
        return [plan.get("mode") for plan in self.plans]

    def measured(self, generation):
        plan = next((each for each in self.plans if each["generation"] == generation), {})
        slowest, even = 0.1 * self.slow, 0.4 / (3 + 1 / self.slow)
        delay = self.link / plan.get("localSteps", 1)
        work = Work(even, max(even, 0.1), slowest, slowest)
        step = delay + (even if plan.get("mode") == "Balanced" else slowest)
        return Window(generation, 32, 64.0, 1.0, step, 0.0, delay, work, "worker-0")

    def run(self, seconds):
        for _ in range(seconds):
            world = self.it.world()
            decision = self.it.operate()
            self.status = job_status(world, decision, self.status, {})
            self.it.tick()
        return self

    def held(self):
        found = next((each for each in self.status["conditions"] if each["type"] == "AdaptationHeld"), None)
        return found and (found["status"], found["reason"])


def test_a_mode_that_is_named_is_sent_once_the_program_says_that_it_can():
    job = Training(None, parallelism={"mode": "Local", "localSteps": 30}).run(20)
    assert job.plans == []
    assert job.held() == ("True", "NoTelemetry")
    job.it.modes = CAN
    job.run(20)
    assert job.plans == [{"generation": 1, "mode": "Local", "localSteps": 30}]
    assert job.held() == ("False", "Following")
    assert job.status["plan"]["mode"] == "Local"
    assert {group["mode"] for group in job.status["workerGroups"]} == {"Local"}


def test_a_bound_is_sent_with_the_mode_that_it_is_for_and_another_one_is_another_plan():
    can = (*CAN, "BoundedStaleness")
    job = Training(can, parallelism={"mode": "BoundedStaleness", "stalenessBound": 8}).run(20)
    assert job.plans == [{"generation": 1, "mode": "BoundedStaleness", "stalenessBound": 8}]
    job.it.body["spec"]["parallelism"]["stalenessBound"] = 2
    job.run(20)
    assert job.plans[1:] == [{"generation": 2, "mode": "BoundedStaleness", "stalenessBound": 2}]


@pytest.mark.parametrize("mode", ["Local", "Auto"])
def test_a_program_that_cannot_is_told_no_mode_and_the_status_says_why(mode):
    job = Training((), parallelism={"mode": mode}, adaptation=ADAPTATION, link=2.0).run(120)
    assert job.plans == []
    assert job.held() == ("True", "ProgramCannot")


def test_a_mode_that_only_others_can_change_to_is_not_sent():
    job = Training(("Synchronous", "Local"), parallelism={"mode": "Balanced"}).run(20)
    assert job.modes == ["Synchronous"]
    assert job.held() == ("True", "ProgramCannot")


def test_an_author_may_change_the_mode_while_the_job_runs_and_back():
    job = Training().run(20)
    for mode in ("Local", "Balanced", None):
        job.it.body["spec"]["parallelism"] = mode and {"mode": mode}
        job.run(10)
    assert job.modes == ["Synchronous", "Local", "Balanced", "Synchronous"]


def test_a_coordinator_that_is_silent_or_ranks_that_start_anew_change_no_plan():
    job = Training(parallelism={"mode": "Local"}).run(20)
    job.it.deaf = True
    job.run(20)
    job.it.deaf = False
    job.it.kill(max(name for name in job.it.pods if "worker-1" in name))
    job.it.progress = recall(record(job.it.progress))
    job.run(60)
    assert {plan["generation"] for plan in job.plans} == {1}


def test_under_auto_a_rank_that_is_always_slow_gets_a_smaller_share():
    job = Training(parallelism={"mode": "Auto"}, adaptation=ADAPTATION, slow=4.0).run(120)
    assert job.modes == ["Synchronous", "Balanced"]
    assert job.status["plan"]["reason"] == "SlowTail"
    job.slow = 1.0
    job.run(120)
    assert job.modes == ["Synchronous", "Balanced", "Synchronous"]


def test_under_auto_a_link_that_is_much_too_slow_has_ranks_step_by_themselves():
    job = Training(parallelism={"mode": "Auto"}, adaptation=ADAPTATION, link=2.0).run(120)
    assert job.modes == ["Synchronous", "Local"]
    assert job.plans[-1]["localSteps"] > 1
    assert job.status["plan"]["reason"] == "ExchangeBound"
    job.link = 0.0
    job.run(120)
    assert job.modes[-1] == "Synchronous"
