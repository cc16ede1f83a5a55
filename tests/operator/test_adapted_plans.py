"""A running job's density follows what is measured, within its author's limits, through whatever happens."""

import horovod_jobs as jobs
import pytest
from virtual_cluster import Crash, VirtualCluster

from gradsieve_operator import decide as d
from gradsieve_operator.adapt import Plan, Window, Work
from gradsieve_operator.status import job_status, recall, record

COMPRESSION = {"algorithm": "TopK", "densityPermille": 50, "minDensityPermille": 5}
ADAPTATION = {"enabled": True, "intervalSeconds": 15, "cooldownSeconds": 30, "minSamples": 5}
WORK = Work(0.1, 0.1, 0.1, 0.1)


class Training:
    """A job whose exchange takes ``link`` seconds for all entries, at the density of the plan it follows."""

    def __init__(self, link=20.0, **spec):
        given = {"compression": COMPRESSION, "adaptation": ADAPTATION, **spec}
        self.it = VirtualCluster(jobs.body(**given), {"n0": 4}, length=10**6)
        self.it.measure = self.measured
        self.link, self.status, self.reasons = link, {}, []

    @property
    def plans(self):
        return [each.plan for said in self.it.said for each in said.actions if isinstance(each, d.PutPlan)]

    def measured(self, generation):
        densities = {plan["generation"]: plan.get("densityPermille", 1000) for plan in self.plans}
        delay = self.link * densities.get(generation, 1000) / 1000
        return Window(generation, 32, 64.0, 1.0, 0.1 + delay, 0.0, delay, WORK, "worker-0")

    def run(self, seconds):
        for _ in range(seconds):
            world = self.it.world()
            decision = self.it.operate()
            self.status = job_status(world, decision, self.status, {})
            held = self.condition("AdaptationHeld")
            if held and held["reason"] not in self.reasons[-1:]:
                self.reasons.append(held["reason"])
            self.it.tick()
        return self

    def condition(self, kind):
        return next((each for each in self.status["conditions"] if each["type"] == kind), None)

    @property
    def densities(self):
        return [plan["densityPermille"] for plan in self.plans]


def test_a_link_that_is_too_slow_for_the_density_gets_a_lower_one():
    job = Training().run(90)
    assert job.densities == [50, 5]
    why = {name: job.status["plan"][name] for name in ("reason", "evidence")}
    assert job.plans[-1] == {"generation": 2, **COMPRESSION, "densityPermille": 5, **why}
    assert job.status["plan"] | {"lastChangeTime": ""} == {
        "generation": 2,
        "appliedGeneration": 0,
        "mode": "Synchronous",
        "densityPermille": 5,
        "reason": "LongDelay",
        "evidence": (
            "exchanging takes 91% of a step of 1100 ms; Synchronous, density 5 ‰ instead of Synchronous, "
            "density 50 ‰ is expected to shorten the time to a loss by 81%"
        ),
        "lastChangeTime": "",
    }
    assert job.reasons == ["NotRunning", "Confirming", "Adapting", "CoolDown", "AsGoodAsItGets"]


def test_what_the_author_asks_for_stays_apart_from_what_was_decided():
    job = Training().run(90)
    assert job.it.progress.compression.density_permille == 50
    before = len(job.it.rosters)
    job.it.kill(max(name for name in job.it.pods if "worker-1" in name))
    job.run(30)
    assert len(job.it.rosters) > before
    assert job.densities == [50, 5]


def test_another_operator_goes_on_with_what_was_decided():
    job = Training().run(90)
    job.it.progress = recall(record(job.it.progress))
    assert job.it.progress.adaptation.plan == Plan("Synchronous", 5)
    job.run(60)
    assert job.densities == [50, 5]


@pytest.mark.parametrize("at", range(3))
def test_an_operator_that_is_killed_in_the_middle_of_a_change_sends_it_once(at):
    job = Training()
    while not job.it.progress.adaptation or not job.it.progress.adaptation.candidate:
        job.run(1)
    job.it.now += 15
    with pytest.raises(Crash):
        job.it.operate(crash_at=at)
    job.run(60)
    assert sorted(set(job.densities)) == [5, 50]
    assert job.it.progress.plan_generation == 2


def test_an_authors_new_density_takes_the_place_of_what_was_decided():
    job = Training().run(90)
    job.it.body["spec"]["compression"] = {**COMPRESSION, "densityPermille": 100}
    job.run(5)
    assert job.densities == [50, 5, 100]
    job.run(60)
    assert job.densities == [50, 5, 100, 5]


def test_adaptation_that_is_switched_off_leaves_what_is_asked_for():
    job = Training().run(90)
    job.it.body["spec"]["adaptation"] = {"enabled": False}
    job.run(20)
    assert job.densities == [50, 5, 50]
    assert job.it.progress.adaptation is None
    held = job.condition("AdaptationHeld")
    assert (held["status"], held["reason"]) == ("False", "NotAsked")


def test_a_suspended_job_begins_with_what_is_asked_for():
    job = Training().run(90)
    job.it.body["spec"]["suspend"] = True
    job.run(10)
    job.it.body["spec"]["suspend"] = False
    job.run(10)
    assert job.densities == [50, 5, 50]


def test_a_policy_that_is_away_leaves_what_was_decided():
    job = Training().run(90)
    job.it.unresolved = "there is no CompressionPolicy 'shared' here"
    job.run(30)
    assert job.densities == [50, 5]


def test_a_job_that_does_not_ask_has_neither_the_condition_nor_a_memory():
    job = Training(adaptation=None, compression={"algorithm": "TopK", "densityPermille": 50}).run(90)
    assert job.densities == [50]
    assert (job.condition("AdaptationHeld"), job.it.progress.adaptation) == (None, None)


@pytest.mark.parametrize(
    ("parallelism", "adaptation", "reason"),
    [
        pytest.param({"mode": "Adaptive"}, None, "ProgramCannot", id="a mode that no program can"),
        pytest.param({"mode": "Auto"}, {"enabled": True}, "ProgramCannot", id="modes to choose from"),
        pytest.param({"mode": "Auto"}, None, "Disabled", id="Auto without adaptation"),
    ],
)
def test_what_cannot_be_done_is_said(parallelism, adaptation, reason):
    compression = {"algorithm": "TopK", "densityPermille": 50}
    job = Training(compression=compression, parallelism=parallelism, adaptation=adaptation)
    job.it.modes = ()
    job.run(20)
    held = job.condition("AdaptationHeld")
    assert (held["status"], held["reason"]) == ("True", reason)
    assert {group["mode"] for group in job.status["workerGroups"]} == {"Synchronous"}


def test_under_mode_auto_densities_are_adapted_all_the_same():
    job = Training(parallelism={"mode": "Auto"}).run(90)
    assert job.densities == [50, 5]


def test_a_coordinator_that_measures_nothing_is_named():
    job = Training()
    job.it.measure = lambda _: None
    job.run(60)
    assert job.condition("AdaptationHeld")["reason"] == "NoTelemetry"
    assert job.densities == [50]


def test_the_record_changes_only_when_something_is_decided():
    job = Training().run(30)
    records = []
    for _ in range(300):
        job.run(1)
        records.append(record(job.it.progress)["record"])
    assert len(set(records)) <= 6


def test_a_job_is_looked_at_again_when_something_may_be_decided_and_not_later():
    job = Training()
    while not job.it.progress.adaptation or not job.it.progress.adaptation.candidate:
        job.run(1)
    since = job.it.progress.adaptation.candidate_since
    assert job.it.said[-1].requeue_after <= ADAPTATION["intervalSeconds"] - (job.it.now - 1 - since)
    job.run(120)
    assert job.it.said[-1].requeue_after == job.it.world().pace.steady
