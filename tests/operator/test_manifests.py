"""The operator is installed with no more rights than it needs, and under restricted pod security."""

import pytest
import yaml
from manifests import ROOT

FILES = ("namespace.yaml", "rbac.yaml", "operator.yaml")
OBJECTS = [item for file in FILES for item in yaml.safe_load_all((ROOT / "manifests" / file).read_text())]
SAMPLES = sorted((ROOT / "manifests/samples").glob("*.yaml"))


def of_kind(kind):
    return [item for item in OBJECTS if item["kind"] == kind]


def rules():
    return [rule for role in of_kind("ClusterRole") + of_kind("Role") for rule in role["rules"]]


def test_no_role_has_a_wildcard():
    for rule in rules():
        for part in ("apiGroups", "resources", "verbs"):
            assert "*" not in rule[part]


def test_secrets_are_never_listed_watched_or_deleted():
    verbs = {verb for rule in rules() if "secrets" in rule["resources"] for verb in rule["verbs"]}
    assert verbs == {"get", "create", "patch"}


def test_the_operator_reads_nodes_and_changes_none():
    verbs = {verb for rule in rules() if "nodes" in rule["resources"] for verb in rule["verbs"]}
    assert verbs == {"list", "watch"}


def test_no_role_allows_what_a_subresource_does_not_have():
    for rule in rules():
        if any("/" in resource for resource in rule["resources"]):
            assert not {"list", "watch", "create", "delete", "deletecollection"} & set(rule["verbs"])


def test_every_role_that_is_bound_exists():
    roles = {(role["kind"], role["metadata"]["name"]) for role in of_kind("ClusterRole") + of_kind("Role")}
    for binding in of_kind("ClusterRoleBinding") + of_kind("RoleBinding"):
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in roles


def assert_restricted(pod):
    """Pod Security Standard *restricted*, and a root file system that cannot be written."""
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in container["resources"]["limits"]


def test_the_operator_runs_twice_restricted_and_probed():
    [deployment] = of_kind("Deployment")
    assert deployment["spec"]["replicas"] == 2
    pod = deployment["spec"]["template"]["spec"]
    assert_restricted(pod)
    [container] = pod["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_its_namespace_enforces_restricted():
    [namespace] = of_kind("Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_a_quota_of_its_namespace_speaks_of_the_operator_s_priority():
    """Where system priorities are restricted to that, its pods would be refused otherwise."""
    [deployment], [quota] = of_kind("Deployment"), of_kind("ResourceQuota")
    pod = deployment["spec"]["template"]["spec"]
    [scope] = quota["spec"]["scopeSelector"]["matchExpressions"]
    assert quota["metadata"]["namespace"] == deployment["metadata"]["namespace"]
    assert scope == {"scopeName": "PriorityClass", "operator": "In", "values": [pod["priorityClassName"]]}
    # A rolling update has one more.
    assert int(quota["spec"]["hard"]["pods"]) > deployment["spec"]["replicas"]


@pytest.mark.parametrize("path", SAMPLES, ids=[path.stem for path in SAMPLES])
def test_a_sample_s_pods_pass_restricted_pod_security(path):
    for group in yaml.safe_load(path.read_text())["spec"].get("workerGroups", ()):
        assert_restricted(group["template"]["spec"])
