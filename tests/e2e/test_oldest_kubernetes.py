"""On the oldest Kubernetes that docs/kubernetes.md promises: the definitions with all their rules, and a job.

API server and scheduler are of that version, the nodes are kwok's, and the test says how the job ends.
"""

import json
import re

import pytest
from cluster.binaries import kubernetes_version
from cluster.errors import ClusterError
from cluster.simulated import SimulatedCluster
from helm_chart import CHART, ROOT, helm
from horovod_job import Job, group
from kubernetes import client
from manifests import base, creations, policies, updates
from operator_process import ACCOUNT, running_operator
from rights import AUDIT, asked
from simulated_jobs import NAMESPACE, add_node, namespace, succeed

pytestmark = pytest.mark.timeout(300)
VERSION = kubernetes_version(oldest=True)
KIND = ("gradsieve.io", "v1alpha1")
PLURALS = {"HorovodJob": "horovodjobs", "CompressionPolicy": "compressionpolicies"}
ASK_ONLY = {"dry_run": "All", "field_validation": "Strict"}


def test_it_is_the_version_that_documentation_and_chart_promise():
    minor = ".".join(VERSION.split(".")[:2])
    assert f"You need Kubernetes {minor} or later" in (ROOT / "docs/kubernetes.md").read_text()
    assert f'kubeVersion: ">={minor}.0-0"' in (CHART / "Chart.yaml").read_text()
    assert helm("template", "r", str(CHART), "--kube-version", VERSION)
    older = f"1.{int(minor.partition('.')[2]) - 1}.99"
    with pytest.raises(ClusterError, match="incompatible with Kubernetes"):
        helm("template", "r", str(CHART), "--kube-version", older)


@pytest.fixture(scope="module")
def old(machine):
    """A control plane of that version, with nodes for a job."""
    with SimulatedCluster.start(AUDIT, oldest=True) as cluster:
        for number in range(1, 4):
            add_node(cluster, f"simulated-{number}", 8)
        cluster.apply(namespace())
        yield cluster


@pytest.fixture(scope="module")
def operator(old, tmp_path_factory):
    """The operator, with the rights of its manifests."""
    with running_operator(old, tmp_path_factory.mktemp("operator") / "log") as found:
        yield found


@pytest.fixture(scope="module")
def valid(old, operator):
    """The valid job of the tables of refused ones; returns its name."""
    jobs = client.CustomObjectsApi(old.api)
    jobs.create_namespaced_custom_object(*KIND, NAMESPACE, "horovodjobs", base(), field_validation="Strict")
    return base()["metadata"]["name"]


def test_the_api_server_is_of_that_version_and_finds_nothing_wrong_with_the_definitions(old, operator):
    assert json.loads(old.kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"] == f"v{VERSION}"
    for name in PLURALS.values():
        crd = json.loads(old.kubectl("get", "crd", f"{name}.gradsieve.io", "-o", "json"))
        said = {each["type"]: each["status"] for each in crd["status"]["conditions"]}
        assert said["Established"] == "True"
        assert said.get("NonStructuralSchema", "False") == "False"


def test_it_refuses_every_manifest_that_later_ones_refuse(old, valid):
    objects = client.CustomObjectsApi(old.api)
    for case in [case for case in [*creations(), *policies()] if case.by != "operator"]:
        plural = PLURALS[case.manifest["kind"]]
        with pytest.raises(client.ApiException) as refused:
            objects.create_namespaced_custom_object(*KIND, NAMESPACE, plural, case.manifest, **ASK_ONLY)
        assert refused.value.status in (400, 422), case.name
        if case.by == "rule":  # the schema's own words differ from version to version
            assert case.says in json.loads(refused.value.body)["message"], case.name


def test_it_refuses_every_change_of_a_running_job_that_later_ones_refuse(old, valid):
    objects = client.CustomObjectsApi(old.api)
    for case in updates():
        change = [{"op": "replace", "path": "/spec", "value": case.manifest["spec"]}]
        where = (*KIND, NAMESPACE, "horovodjobs", valid)
        with pytest.raises(client.ApiException) as refused:
            objects.patch_namespaced_custom_object(
                *where, change, _content_type="application/json-patch+json", **ASK_ONLY
            )
        assert case.says in json.loads(refused.value.body)["message"], case.name


def test_a_job_is_placed_runs_and_ends(old, operator):
    job = Job(old, NAMESPACE, "digits")
    job.apply(group("worker", 3, "train", ["true"]))
    job.wait(job.admitted, 60, "admitted")
    pods = job.pods()
    assert len(pods) == 4
    assert all(pod["spec"]["nodeName"].startswith("simulated-") for pod in pods.values())
    succeed(job)
    assert job.status()["exitCode"] == 0


def test_the_operator_lacked_no_right(old, operator):
    assert asked(old.control_plane.audit_log).refused == []
    assert not re.search(r"orbidden", operator.said())
    assert ACCOUNT in old.control_plane.audit_log.read_text()
