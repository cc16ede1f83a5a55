"""Every manifest of the table is refused by the real API server, or by the operator in a condition, in words.

Nothing is created but what only the operator can refuse: the API server is asked what it would say.
"""

import json
import uuid

import pytest
from horovod_job import Job
from kubernetes import client
from manifests import base, creations, policies, updates

pytestmark = pytest.mark.timeout(200)
KIND = ("gradsieve.io", "v1alpha1")
ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
LONGEST_ANNOTATION = 256 * 1024
BY_SERVER = [case for case in [*creations(), *policies()] if case.by != "operator"]
PLURALS = {"HorovodJob": "horovodjobs", "CompressionPolicy": "compressionpolicies"}
BY_OPERATOR = [case for case in creations() if case.by == "operator"]
ASK_ONLY = {"dry_run": "All", "field_validation": "Strict"}
JSON_PATCH = "application/json-patch+json"


def named(cases):
    return [pytest.param(case, id=case.name) for case in cases]


@pytest.fixture(autouse=True)
def idle():
    """No test here needs pods, or a namespace of its own."""


@pytest.fixture(scope="module")
def space(cluster, operator):
    name = cluster.create_namespace(f"e2e-{uuid.uuid4().hex[:8]}")
    yield name
    cluster.delete_namespace(name)


@pytest.fixture(scope="module")
def existing(cluster, space):
    """Make the valid job, which is not suspended; returns its name."""
    jobs = client.CustomObjectsApi(cluster.api)
    jobs.create_namespaced_custom_object(*KIND, space, "horovodjobs", base(), field_validation="Strict")
    return base()["metadata"]["name"]


def refusal(call) -> str:
    """Return the words with which the API server refuses."""
    with pytest.raises(client.ApiException) as refused:
        call()
    assert refused.value.status in (400, 422), refused.value.body
    return json.loads(refused.value.body)["message"]


def test_the_crds_were_applied_by_plain_kubectl_with_room_to_grow(cluster, operator):
    found = json.loads(cluster.kubectl("get", "crd", "-o", "json"))["items"]
    ours = {each["metadata"]["name"]: each for each in found if each["spec"]["group"] == KIND[0]}
    assert sorted(ours) == ["compressionpolicies.gradsieve.io", "horovodjobs.gradsieve.io"]
    for crd in ours.values():
        assert 0 < len(crd["metadata"]["annotations"][ANNOTATION]) < LONGEST_ANNOTATION * 0.8
        established = {each["type"]: each["status"] for each in crd["status"]["conditions"]}
        assert established["Established"] == established["NamesAccepted"] == "True"
        # A rule that the server cannot afford, or a schema that it does not like, would be said here.
        assert established.get("NonStructuralSchema", "False") == "False"


@pytest.mark.parametrize("case", named(BY_SERVER))
def test_the_api_server_refuses_to_create_it(cluster, space, case):
    objects, plural = client.CustomObjectsApi(cluster.api), PLURALS[case.manifest["kind"]]
    said = refusal(
        lambda: objects.create_namespaced_custom_object(*KIND, space, plural, case.manifest, **ASK_ONLY)
    )
    assert case.says in said


@pytest.mark.parametrize("case", named(updates()))
def test_the_api_server_refuses_to_change_a_running_job_to_it(cluster, space, existing, case):
    jobs = client.CustomObjectsApi(cluster.api)
    # A patch, since the operator writes the status meanwhile.
    change = [{"op": "replace", "path": "/spec", "value": case.manifest["spec"]}]
    where = (*KIND, space, "horovodjobs", existing)
    said = refusal(
        lambda: jobs.patch_namespaced_custom_object(*where, change, _content_type=JSON_PATCH, **ASK_ONLY)
    )
    assert case.says in said


def test_what_the_api_server_cannot_refuse_the_operator_does_and_makes_nothing(cluster, space):
    jobs = {case.name: (case, Job(cluster, space, case.name)) for case in BY_OPERATOR}
    assert len(jobs) >= 3
    for name, (case, _) in jobs.items():
        cluster.apply({**case.manifest, "metadata": {"name": name, "namespace": space}})
    for case, job in jobs.values():
        job.wait(lambda job=job: job.condition("Admitted")["reason"] == "InvalidSpec", 60, "refused")
        assert job.condition("Admitted")["status"] == "False"
        assert case.says in job.condition("Admitted")["message"]
        assert job.children() == []
