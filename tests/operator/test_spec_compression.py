"""A job's compression is laid over the policy that it names; contradictions are refused."""

import pytest

from gradsieve_operator.errors import SpecError
from gradsieve_operator.spec import Compression, CompressionPolicy, JobCompression
from gradsieve_operator.spec.fields import Fields


def parse(**fields) -> JobCompression:
    return JobCompression.parse(Fields(fields, "spec.compression"))


def policy(**spec) -> CompressionPolicy:
    return CompressionPolicy.parse({"metadata": {"name": "slow", "namespace": "team"}, "spec": spec})


def test_what_the_job_leaves_open_comes_from_the_policy():
    job = parse(policyRef={"name": "slow"}, densityPermille=5)
    shared = policy(algorithm="Laplace", densityPermille=10).compression
    assert job.policy == "slow"
    assert job.resolve(shared) == Compression(algorithm="Laplace", density_permille=5)


def test_a_job_without_policy_runs_with_its_own_fields():
    assert parse(algorithm="TopK").resolve(None) == Compression(algorithm="TopK")


def test_what_nobody_sets_is_left_to_the_program():
    assert parse(densityPermille=10).resolve(None).manifest() == {"densityPermille": 10}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"algorithm": "FP16", "densityPermille": 10}, "densityPermille"),
        ({"algorithm": "Laplace", "minDensityPermille": 1}, "minDensityPermille"),
        ({"algorithm": "Layered", "minDensityPermille": 20, "densityPermille": 10}, "minDensityPermille"),
        ({"algorithm": "Layered", "maxDensityPermille": 5, "densityPermille": 10}, "densityPermille"),
        ({"minDensityPermille": 9, "maxDensityPermille": 5}, "minDensityPermille"),
        ({"densityPermille": 1001}, "densityPermille"),
        ({"densityPermille": True}, "densityPermille"),
    ],
)
def test_contradictions_name_the_field(fields, named):
    with pytest.raises(SpecError) as of_job:
        parse(**fields)
    with pytest.raises(SpecError) as of_policy:
        policy(**fields)
    assert of_job.value.field == f"spec.compression.{named}"
    assert of_policy.value.field == f"spec.{named}"


def test_a_job_that_contradicts_its_policy_is_refused_when_they_meet():
    job = parse(policyRef={"name": "slow"}, densityPermille=5)
    with pytest.raises(SpecError, match=r"spec\.compression\.densityPermille: has no meaning for .* FP16"):
        job.resolve(policy(algorithm="FP16").compression)
