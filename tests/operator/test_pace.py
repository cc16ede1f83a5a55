"""How often a coordinator is asked: seldom while ranks train, often while something is expected."""

from dataclasses import replace

import horovod_jobs as jobs
import pytest
from virtual_cluster import VirtualCluster

from gradsieve_operator import decide as d
from gradsieve_operator.cluster.options import Options
from gradsieve_operator.errors import SpecError

PACE = d.Pace()
DENSITY = {"algorithm": "TopK", "densityPermille": 10}
SAMPLE = {"time": 1000.0, "step": 7, "stepSeconds": 0.2, "waitSeconds": 0.05}


def training(**spec) -> VirtualCluster:
    """A job whose ranks have run for longer than the first sample may take."""
    it = VirtualCluster(jobs.body(**spec), {"n0": 2, "n1": 2}, length=10_000)
    it.live(90)
    assert it.progress.running
    return it


def asked_again(it: VirtualCluster, **answer) -> float | None:
    """Return after how many seconds a coordinator with this answer is asked again."""
    world = it.world()
    return d.decide(replace(world, coordinator=replace(world.coordinator, **answer))).requeue_after


def test_a_coordinator_whose_ranks_train_is_asked_seldom():
    it = training()
    assert asked_again(it) == PACE.steady
    assert asked_again(it, telemetry=SAMPLE) == PACE.steady


def test_one_that_does_not_answer_or_whose_ranks_do_not_run_is_asked_often():
    it = training()
    assert asked_again(it, state="Starting") == PACE.starting
    it.deaf = True
    assert d.decide(it.world()).requeue_after == PACE.starting


def test_one_whose_pod_is_not_ready_has_something_to_say():
    it = training()
    leader = it.pods["digits-coordinator-1"]
    it.pods["digits-coordinator-1"] = replace(leader, ready=False)
    assert asked_again(it) == PACE.expecting


def test_a_plan_that_ranks_who_report_do_not_follow_yet_is_waited_for():
    it = training(compression=DENSITY)
    plan = it.progress.plan_generation
    assert asked_again(it, telemetry=SAMPLE, applied_plan=plan - 1) == PACE.expecting
    assert asked_again(it, telemetry=SAMPLE, applied_plan=plan) == PACE.steady
    assert asked_again(it, telemetry={}, applied_plan=0) == PACE.steady, "ranks that never report"


def test_the_first_sample_is_waited_for_for_a_while():
    it = VirtualCluster(jobs.body(), {"n0": 2, "n1": 2}, length=10_000)
    it.live(10)
    assert it.progress.running
    assert asked_again(it) == PACE.expecting
    assert asked_again(it, telemetry=SAMPLE) == PACE.steady


def test_ranks_of_a_job_that_has_become_invalid_are_asked_no_more_often():
    it = training()
    it.invalid = "a field is wrong"
    assert asked_again(it) == PACE.steady


@pytest.mark.parametrize(("count", "seconds"), [(1, 15), (480, 15), (800, 25), (960, 30), (5000, 30)])
def test_coordinators_of_many_jobs_are_asked_less_often_where_nothing_follows_what_they_say(count, seconds):
    it, pace = training(), PACE.among(count)
    relaxed = d.decide(replace(it.world(), pace=pace)).requeue_after
    assert relaxed == pace.relaxed == seconds


def test_a_job_that_adapts_or_that_misses_somebody_is_asked_as_often_among_many():
    many = PACE.among(5000)
    it = training(adaptation={"enabled": True}, compression=DENSITY)
    adapted = it.world()
    assert d.decide(replace(adapted, pace=many)).requeue_after == PACE.steady
    world = training().world()
    missing = replace(world.coordinator, missing=("worker-0",), missing_seconds={"worker-0": 20.0})
    assert d.decide(replace(world, pace=many, coordinator=missing)).requeue_after == PACE.steady


def test_while_jobs_wait_to_be_looked_at_measurements_are_asked_for_and_decided_on_less_often():
    busy = PACE.among(5000, busy=True)
    it = training(adaptation={"enabled": True}, compression=DENSITY)
    assert d.decide(replace(it.world(), pace=busy)).requeue_after == busy.adapted == 4 * PACE.steady
    assert busy.deciding == 15
    assert d.Pace(steady=60.0).among(1, busy=True).adapted == d.Pace(steady=60.0).among(1).adapted == 60


def test_who_has_coordinators_asked_less_often_than_that_has_his_will():
    assert PACE.among(5000).relaxed == 30
    assert PACE.among(5000, busy=True).relaxed == PACE.among(1, busy=True).relaxed == 60
    assert d.Pace(steady=60.0).among(5000).relaxed == 60
    assert d.Pace(steady=5.0).among(1).relaxed == 5


def test_a_chart_may_set_both_intervals():
    found = Options.read({"GRADSIEVE_COORDINATOR_SECONDS": "15", "GRADSIEVE_TELEMETRY_SECONDS": "60"})
    assert found.pace == d.Pace(steady=15.0, telemetry=60.0)
    assert Options.read({"GRADSIEVE_COORDINATOR_SECONDS": ""}).pace == PACE


@pytest.mark.parametrize("text", ["0", "often", "nan", "3600"])
def test_an_interval_that_makes_no_sense_is_refused(text):
    with pytest.raises(SpecError, match="from 1 to 60 seconds"):
        Options.read({"GRADSIEVE_TELEMETRY_SECONDS": text})
