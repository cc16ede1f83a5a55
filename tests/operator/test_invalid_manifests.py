"""Every manifest of the table is refused where the table says, and what is valid is not.

CEL rules are evaluated by API servers only; here the operator's own checks, which repeat them, stand in.
"""

import jsonschema
import pytest
import yaml
from manifests import ROOT, base, creations, json_schema, policies, policy, updates

from gradsieve_operator.errors import SpecError
from gradsieve_operator.schema import job_definition, policy_definition
from gradsieve_operator.spec import CompressionPolicy, HorovodJob


def validator(crd):
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return jsonschema.Draft202012Validator(json_schema(schema))


VALIDATORS = {crd["spec"]["names"]["kind"]: validator(crd) for crd in (job_definition(), policy_definition())}
PARSERS = {"HorovodJob": HorovodJob.parse, "CompressionPolicy": CompressionPolicy.parse}
SAMPLES = sorted((ROOT / "manifests/samples").glob("*.yaml"))


def named(cases):
    return [pytest.param(case, id=case.name) for case in cases]


def structural_errors(manifest):
    return list(VALIDATORS[manifest["kind"]].iter_errors(manifest))


def test_there_are_at_least_thirty_and_no_two_have_one_name():
    names = [case.name for case in [*creations(), *policies()]]
    assert len(names) >= 30
    assert len(set(names)) == len(names)


def test_the_job_that_the_cases_change_is_valid():
    assert structural_errors(base()) == []
    assert HorovodJob.parse(base()).workers == 6


def test_the_policy_that_the_cases_change_is_valid():
    assert structural_errors(policy()) == []
    CompressionPolicy.parse(policy())


DUPLICATES = "Duplicate value"  # of a list-map's key: no JSON Schema says so


@pytest.mark.parametrize("case", named(case for case in [*creations(), *policies()] if case.by == "schema"))
def test_the_schema_refuses_it(case):
    if case.says == DUPLICATES and "group" in case.name:
        with pytest.raises(SpecError, match="names must differ"):
            HorovodJob.parse(case.manifest)
    else:
        assert structural_errors(case.manifest)


@pytest.mark.parametrize("case", named(case for case in [*creations(), *policies()] if case.by == "rule"))
def test_the_structure_lets_it_pass_and_the_operator_s_own_check_does_not(case):
    assert structural_errors(case.manifest) == []
    with pytest.raises(SpecError):
        PARSERS[case.manifest["kind"]](case.manifest)


@pytest.mark.parametrize("case", named(case for case in creations() if case.by == "operator"))
def test_only_the_operator_refuses_it(case):
    assert structural_errors(case.manifest) == []
    with pytest.raises(SpecError) as caught:
        HorovodJob.parse(case.manifest)
    assert case.says in str(caught.value)


def messages(schema):
    """Yield the messages of all CEL rules."""
    if isinstance(schema, dict):
        yield from (rule["message"] for rule in schema.get("x-kubernetes-validations", ()))
        schema = list(schema.values())
    if isinstance(schema, list):
        for inner in schema:
            yield from messages(inner)


MESSAGES = {
    "HorovodJob": list(messages(job_definition())),
    "CompressionPolicy": list(messages(policy_definition())),
}
BY_RULE = [case for case in [*creations(), *updates(), *policies()] if case.by == "rule"]


@pytest.mark.parametrize("case", named(BY_RULE))
def test_a_rule_says_what_the_table_quotes(case):
    assert structural_errors(case.manifest) == []
    assert any(case.says in message for message in MESSAGES[case.manifest["kind"]])


@pytest.mark.parametrize("kind", MESSAGES)
def test_the_table_has_a_case_for_every_rule(kind):
    quoted = [case.says for case in BY_RULE if case.manifest["kind"] == kind]
    unproved = [message for message in MESSAGES[kind] if not any(says in message for says in quoted)]
    assert unproved == []


@pytest.mark.parametrize("path", SAMPLES, ids=[path.stem for path in SAMPLES])
def test_a_sample_is_valid(path):
    manifest = yaml.safe_load(path.read_text())
    assert structural_errors(manifest) == []
    PARSERS[manifest["kind"]](manifest)


def test_the_digits_sample_is_four_ranks_on_two_kinds_of_gpus_at_one_percent():
    job = HorovodJob.parse(yaml.safe_load((ROOT / "manifests/samples/digits.yaml").read_text()))
    assert job.slots == 4
    assert [group.name for group in job.groups] == ["a100", "t4"]
    assert job.compression.resolve(None).manifest() == {"algorithm": "Laplace", "densityPermille": 10}
