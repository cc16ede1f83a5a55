"""Parallelism and adaptation: nothing where nobody asks, and the job's word before its policy's."""

import horovod_jobs as jobs
import pytest

from gradsieve_operator.errors import SpecError
from gradsieve_operator.spec import Adaptation, CompressionPolicy, Parallelism, Steering
from gradsieve_operator.spec.values import MODES


def policy(**spec) -> CompressionPolicy:
    return CompressionPolicy.parse({"metadata": {"name": "slow", "namespace": "team"}, "spec": spec})


def steering(shared=None, **spec) -> Steering:
    return jobs.job(**spec).steering.over(None if shared is None else policy(**shared).steering)


def test_a_job_that_asks_for_nothing_trains_in_step_and_is_not_adapted():
    assert steering() == Steering(
        parallelism=Parallelism(mode="Synchronous"), adaptation=Adaptation(enabled=False)
    )


def test_an_empty_adaptation_is_not_enabled():
    assert not steering(adaptation={}).adaptation.enabled


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_can_be_named(mode):
    assert steering(parallelism={"mode": mode}).parallelism.mode == mode


def test_a_jobs_fields_beat_its_policys_one_by_one():
    shared = {"parallelism": {"mode": "Auto"}, "adaptation": {"enabled": True, "cooldownSeconds": 60}}
    found = steering(shared, adaptation={"cooldownSeconds": 300, "minSamples": None})
    assert found.parallelism.mode == "Auto"
    assert (found.adaptation.enabled, found.adaptation.cooldown) == (True, 300)


def test_a_policys_bound_goes_where_the_job_names_a_mode_that_it_is_not_for():
    shared = {"parallelism": {"mode": "BoundedStaleness", "stalenessBound": 3}}
    assert steering(shared).parallelism.staleness_bound == 3
    dynamic = steering(shared, parallelism={"mode": "DynamicBoundedStaleness"}).parallelism
    assert dynamic.staleness_bound == 3
    assert steering(shared, parallelism={"mode": "Auto"}).parallelism == Parallelism(mode="Auto")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        pytest.param({"parallelism": {"mode": "Fastest"}}, "parallelism.mode", id="unknown"),
        pytest.param({"parallelism": {"stalenessBound": 3}}, "parallelism.stalenessBound", id="no mode"),
        pytest.param(
            {"parallelism": {"mode": "Adaptive", "localSteps": 3}},
            "parallelism.localSteps",
            id="not its",
        ),
        pytest.param(
            {"parallelism": {"mode": "Local", "localSteps": 0}}, "parallelism.localSteps", id="no steps"
        ),
        pytest.param({"adaptation": {"enabled": "yes"}}, "adaptation.enabled", id="no truth"),
        pytest.param({"adaptation": {"intervalSeconds": 14}}, "adaptation.intervalSeconds", id="too often"),
        pytest.param({"adaptation": {"cooldownSeconds": 14}}, "adaptation.cooldownSeconds", id="too soon"),
        pytest.param({"adaptation": {"minSamples": 31}}, "adaptation.minSamples", id="more than are kept"),
        pytest.param({"adaptation": {"hysteresisPercent": 0}}, "adaptation.hysteresisPercent", id="none"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_field_in_jobs_and_policies(spec, field):
    for parse in (lambda: jobs.job(**spec), lambda: policy(**spec)):
        with pytest.raises(SpecError) as refusal:
            parse()
        assert refusal.value.field == f"spec.{field}"


def test_limits_of_the_density_go_with_every_rule_beside_an_adaptation():
    limits = {"algorithm": "TopK", "densityPermille": 10, "minDensityPermille": 5}
    job = jobs.job(compression=limits, adaptation={"enabled": False})
    assert job.compression.resolve(None).min_density_permille == 5
    shared = policy(**limits, adaptation={})
    named = jobs.job(compression={"policyRef": {"name": "slow"}}).compression
    assert named.resolve(shared.compression, adapted=shared.steering.adapts).min_density_permille == 5
    with pytest.raises(SpecError, match=r"minDensityPermille: is for Layered and Importance, not for TopK"):
        jobs.job(compression=limits)
