"""The chart's Job brings the CustomResourceDefinitions up to date, and never back."""

import copy

import kmock
import pytest

from gradsieve_operator.cluster import definitions
from gradsieve_operator.cluster.access import Access
from gradsieve_operator.cluster.api import Api
from gradsieve_operator.cluster.definitions import update
from gradsieve_operator.errors import ApiError
from gradsieve_operator.schema import fields_beyond, job_definition, policy_definition

CRD = "apiextensions.k8s.io/v1/customresourcedefinitions"
JOBS, POLICIES = "horovodjobs.gradsieve.io", "compressionpolicies.gradsieve.io"
ESTABLISHED = {"status": {"conditions": [{"type": "Established", "status": "True"}]}}


def spec_properties(definition):
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema["properties"]["spec"]["properties"]


def without(definition, field):
    earlier = copy.deepcopy(definition)
    del spec_properties(earlier)[field]
    return earlier


@pytest.fixture
def definitions_served(server):
    """The server serves each kind once it has its definition."""
    server.resources[CRD] = {}

    def serve(request):
        name = request.name
        if server.objects[CRD, None, name].raw.get("status") is None:
            server.objects[CRD, None, name].patch(ESTABLISHED)

    server.after = serve
    return server


async def updated(server):
    async with Api(Access.find()) as api:
        await update(api)
    return server.all(CRD, None)


async def test_definitions_that_are_not_there_are_made(definitions_served):
    found = await updated(definitions_served)
    assert found[JOBS]["spec"] == job_definition()["spec"]
    assert found[POLICIES]["spec"] == policy_definition()["spec"]


async def test_it_asks_for_nothing_but_to_read_and_apply_them(definitions_served):
    await updated(definitions_served)
    asked = {(each.method.value.upper(), each.name) for each in definitions_served}
    assert asked == {(method, name) for method in ("GET", "PATCH") for name in (JOBS, POLICIES)}


async def test_those_of_an_earlier_version_gain_the_fields_that_are_new(definitions_served):
    earlier = without(job_definition(), "scheduling")
    definitions_served.objects[CRD, None, JOBS] = {**earlier, **ESTABLISHED}
    found = await updated(definitions_served)
    assert "scheduling" in spec_properties(found[JOBS])


async def test_those_of_a_later_version_are_left_as_they_are(definitions_served, caplog):
    later = copy.deepcopy(job_definition())
    spec_properties(later)["elasticity"] = {"type": "string"}
    definitions_served.objects[CRD, None, JOBS] = {**later, **ESTABLISHED}
    found = await updated(definitions_served)
    assert "elasticity" in spec_properties(found[JOBS])
    assert definitions_served.writes == [f"PATCH /apis/{CRD}/{POLICIES}"]
    assert "v1alpha1.spec.elasticity" in caplog.text


async def test_it_does_not_end_before_the_kinds_are_served(server, monkeypatch):
    server.resources[CRD] = {}
    monkeypatch.setattr(definitions, "SERVED_SECONDS", 0.2)
    with pytest.raises(TimeoutError):
        await updated(server)


async def test_what_the_server_refuses_is_an_error(definitions_served):
    def refuse(_):
        raise kmock.KubernetesError(status=403, reason="Forbidden", message="no right")

    definitions_served.before = refuse
    with pytest.raises(ApiError, match="no right"):
        await updated(definitions_served)


def test_equal_definitions_have_nothing_beyond_each_other():
    assert fields_beyond(job_definition(), job_definition()) == ()


def test_fields_are_found_in_lists_and_in_pod_templates():
    later = copy.deepcopy(job_definition())
    group = spec_properties(later)["workerGroups"]["items"]["properties"]
    group["template"]["properties"]["spec"]["properties"]["newField"] = {"type": "string"}
    said = fields_beyond(later, job_definition())
    assert said == ("v1alpha1.spec.workerGroups[].template.spec.newField",)
    assert fields_beyond(job_definition(), later) == ()
