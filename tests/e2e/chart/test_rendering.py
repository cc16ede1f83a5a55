"""What the chart renders, by the real Helm and without a cluster."""

import json
import re

import pytest
import yaml
from cluster.errors import ClusterError
from helm_chart import CHART, MANIFESTS, helm, manifest_files, rendered

from gradsieve_operator import contract


def of(objects, kind, name=None):
    """The objects of a kind, hooks apart."""
    return [
        each
        for each in objects
        if each["kind"] == kind
        and name in (None, each["metadata"]["name"])
        and "helm.sh/hook" not in each["metadata"].get("annotations", {})
    ]


def deployment(*options):
    [found] = of(rendered(*options), "Deployment")
    return found["spec"]


def pod(*options):
    return deployment(*options)["template"]["spec"]


def environment(*options):
    [container] = pod(*options)["containers"]
    return {each["name"]: each.get("value") for each in container["env"]}


def rights(roles):
    return {
        (group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_committed_manifests_are_what_the_chart_renders():
    for name, text in manifest_files().items():
        assert (MANIFESTS / name).read_text() == text, f"{name}: run make manifests"


def test_helm_finds_nothing_wrong_with_the_chart():
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["rbac.scope=namespaced"], "watchNamespaces"),
        (["serviceAccount.create=false"], "serviceAccount.name"),
        (["extraEnv[0].name=GRADSIEVE_PLAN_NODES"], "extraEnv sets GRADSIEVE_PLAN_NODES"),
        (["replicaCount=3"], "replicaCount"),
        (["image.name=operator"], "name"),
        (["podLabels.app\\.kubernetes\\.io/name=other"], "podLabels"),
        (["image.digest=latest"], "digest"),
        (["arch=riscv"], "arch"),
        (["prometheus.url=prometheus:9090"], "prometheus"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_values_that_could_not_work_are_refused_with_their_name(options, says):
    with pytest.raises(ClusterError, match=says):
        rendered(*(word for option in options for word in ("--set", option)))


@pytest.mark.parametrize(
    ("url", "port"),
    [("http://prometheus.monitoring:9090", 9090), ("https://metrics.example.com/prometheus", 443)],
)
def test_a_prometheus_is_asked_and_let_out_to(url, port):
    values = ("--set", f"prometheus.url={url}", "--set", "networkPolicy.egress.enabled=true")
    objects = rendered(*values)
    [deployment], [policy] = of(objects, "Deployment"), of(objects, "NetworkPolicy")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": "GRADSIEVE_PROMETHEUS_URL", "value": url} in container["env"]
    assert [{"protocol": "TCP", "port": port}] in [rule["ports"] for rule in policy["spec"]["egress"]]
    assert "GRADSIEVE_PROMETHEUS_URL" not in str(rendered())


def test_by_default_it_serves_the_cluster_with_two_replicas_of_no_special_priority():
    objects = rendered()
    [found] = of(objects, "Deployment")
    assert found["spec"]["replicas"] == 2
    assert len(of(objects, "PodDisruptionBudget")) == 1
    assert "priorityClassName" not in found["spec"]["template"]["spec"]
    assert of(objects, "ResourceQuota") == of(objects, "Namespace") == []
    assert "--all-namespaces" in found["spec"]["template"]["spec"]["containers"][0]["args"]
    [policy] = of(objects, "NetworkPolicy")
    assert policy["spec"]["policyTypes"] == ["Ingress"]


def test_every_pod_of_the_chart_is_restricted_and_leaves_the_user_to_image_or_cluster():
    found = [each for each in rendered() if each["kind"] in ("Deployment", "Job", "Pod")]
    assert len(found) == 3
    for each in found:
        spec = each["spec"] if each["kind"] == "Pod" else each["spec"]["template"]["spec"]
        assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "memory" in container["resources"]["limits"]


def test_one_replica_has_no_budget_that_would_keep_its_node_from_being_drained():
    assert of(rendered("--set", "replicas=1"), "PodDisruptionBudget") == []


def test_a_system_priority_brings_the_quota_without_which_some_clusters_refuse_its_pods():
    objects = rendered("--set", "priorityClassName=system-cluster-critical")
    [quota] = of(objects, "ResourceQuota")
    [scope] = quota["spec"]["scopeSelector"]["matchExpressions"]
    assert scope["values"] == [of(objects, "Deployment")[0]["spec"]["template"]["spec"]["priorityClassName"]]
    assert of(rendered("--set", "priorityClassName=urgent"), "ResourceQuota") == []


NAMESPACED = ("--set", "rbac.scope=namespaced", "--set", "watchNamespaces={red,blue}")


def test_namespaced_it_may_do_in_the_listed_namespaces_what_it_may_do_everywhere_otherwise():
    wide, narrow = rendered(), rendered(*NAMESPACED)
    roles = of(narrow, "Role", "gradsieve-operator-jobs")
    assert {role["metadata"]["namespace"] for role in roles} == {"red", "blue"}
    [planner] = of(narrow, "ClusterRole", "gradsieve-operator-gradsieve-system")
    assert rights([*roles, planner]) == rights(of(wide, "ClusterRole", "gradsieve-operator"))


def test_namespaced_the_whole_cluster_is_only_read_and_no_secret_of_it():
    [planner] = of(rendered(*NAMESPACED), "ClusterRole", "gradsieve-operator-gradsieve-system")
    assert rights([planner]) == {
        ("", "nodes", "list"),
        ("", "nodes", "watch"),
        ("", "pods", "list"),
        ("", "pods", "watch"),
        ("scheduling.k8s.io", "priorityclasses", "list"),
        ("scheduling.k8s.io", "priorityclasses", "watch"),
    }


def test_namespaced_without_planning_and_roles_for_users_it_is_nothing_outside_of_its_namespaces():
    off = ("--set", "planning.enabled=false,rbac.userRoles=false,crds.enabled=false")
    objects = rendered(*NAMESPACED, *off)
    assert all(each["metadata"].get("namespace") for each in objects)
    assert environment(*NAMESPACED, *off)["GRADSIEVE_PLAN_NODES"] == "false"


def test_the_roles_of_the_listed_namespaces_are_bound_to_its_account():
    objects = rendered(*NAMESPACED, "--set", "serviceAccount.create=false,serviceAccount.name=other")
    bindings = of(objects, "RoleBinding") + of(objects, "ClusterRoleBinding")
    assert {subject["name"] for each in bindings for subject in each["subjects"]} == {"other"}
    roles = {(role["kind"], role["metadata"]["name"]) for role in objects if "Role" in role["kind"]}
    assert {(each["roleRef"]["kind"], each["roleRef"]["name"]) for each in bindings} <= roles


def test_kopf_and_the_operator_serve_the_same_namespaces():
    [container] = pod(*NAMESPACED)["containers"]
    assert container["args"][-2:] == ["--namespace=red", "--namespace=blue"]
    assert environment(*NAMESPACED)["GRADSIEVE_WATCH_NAMESPACES"] == "red,blue"


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (None, None),
        ("allowedServiceAccounts=[]", ""),
        ('allowedServiceAccounts=["trainer","red/reader"]', "trainer,red/reader"),
    ],
    ids=["any", "none", "some"],
)
def test_accounts_that_jobs_may_use_are_told_apart_from_none(option, expected):
    found = environment(*(("--set-json", option) if option else ()))
    assert found.get("GRADSIEVE_ALLOWED_SERVICE_ACCOUNTS", None) == expected
    assert ("GRADSIEVE_ALLOWED_SERVICE_ACCOUNTS" in found) is (expected is not None)


def test_a_digest_goes_before_a_tag():
    digest = f"sha256:{'0' * 64}"
    options = ("--set", f"image.repository=r/o,image.tag=v1,image.digest={digest}")
    assert pod(*options)["containers"][0]["image"] == f"r/o@{digest}"
    assert pod("--set", "image.repository=r/o,image.tag=v1")["containers"][0]["image"] == "r/o:v1"


def test_architecture_pull_secrets_and_tolerations_hold_for_all_of_its_pods():
    options = ("arch=arm64", "imagePullSecrets[0].name=registry", "tolerations[0].operator=Exists")
    objects = rendered(*(word for option in options for word in ("--set", option)))
    specs = [
        each["spec"]["template"]["spec"] if "template" in each["spec"] else each["spec"]
        for each in objects
        if each["kind"] in ("Deployment", "Job", "Pod")
    ]
    assert len(specs) == 3
    for spec in specs:
        assert spec["nodeSelector"] == {"kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64"}
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert spec["tolerations"] == [{"operator": "Exists"}]


def test_egress_is_restricted_to_names_coordinators_and_the_api_server_when_asked_for():
    options = ("--set", "networkPolicy.egress.enabled=true,networkPolicy.egress.apiServerCidrs={10.0.0.1/32}")
    [policy] = of(rendered(*options), "NetworkPolicy")
    dns, coordinators, api = policy["spec"]["egress"]
    assert {port["port"] for port in dns["ports"]} == {53}
    assert coordinators["ports"] == [{"protocol": "TCP", "port": 7443}]
    assert api["to"] == [{"ipBlock": {"cidr": "10.0.0.1/32"}}]


def test_the_job_that_applies_definitions_may_read_and_apply_these_two_and_no_others():
    [role] = [each for each in rendered() if each["metadata"]["name"].startswith("gradsieve-operator-crds-g")
              and each["kind"] == "ClusterRole"]  # fmt: skip
    named, unnamed = role["rules"]
    assert set(named["resourceNames"]) == {
        f"{plural}.{contract.GROUP}" for plural in (contract.JOB_PLURAL, contract.POLICY_PLURAL)
    }
    # What is applied and not there is created, and cannot be allowed by its name.
    assert (named["verbs"], unnamed["verbs"]) == (["get", "patch"], ["create"])


def test_definitions_are_no_part_of_a_release_so_that_neither_rollback_nor_uninstallation_touches_them():
    objects = rendered()
    assert of(objects, "CustomResourceDefinition") == of(objects, "Job") == []
    hooks = [each for each in objects if each["metadata"]["name"].startswith("gradsieve-operator-crds")]
    assert {each["kind"] for each in hooks} == {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job"}
    for each in hooks:
        notes = each["metadata"]["annotations"]
        assert notes["helm.sh/hook"] == "pre-install,pre-upgrade"
        assert "hook-succeeded" in notes["helm.sh/hook-delete-policy"]
    off = rendered("--set", "crds.enabled=false")
    assert not [each for each in off if each["metadata"]["name"].startswith("gradsieve-operator-crds")]


def monitoring(kind, options=()):
    """What of a kind is rendered when everything about metrics is on."""
    on = ",".join(f"metrics.{name}.enabled=true" for name in MONITORING)
    return of(rendered("--set", on, *options), kind)


MONITORING = ("serviceMonitor", "podMonitor", "prometheusRule", "dashboard")
KINDS = ("ServiceMonitor", "PodMonitor", "PrometheusRule", "ConfigMap")


@pytest.mark.parametrize(("value", "kind"), list(zip(MONITORING, KINDS, strict=True)))
def test_what_asks_for_other_operators_is_off_by_default_and_takes_the_labels_that_they_select(value, kind):
    assert of(rendered(), kind) == []
    [found] = monitoring(kind, ("--set", f"metrics.{value}.additionalLabels.release=prometheus"))
    assert found["metadata"]["labels"]["release"] == "prometheus"
    assert found["metadata"]["labels"]["app.kubernetes.io/name"] == "gradsieve-operator"


def test_the_service_monitor_selects_the_operator_s_service_and_its_port():
    [monitor], [service] = monitoring("ServiceMonitor"), of(rendered(), "Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}


@pytest.mark.parametrize(
    ("address", "asked"), [("10.1.2.3", "10.1.2.3:7480"), ("fd00::1", "[fd00::1]:7480")], ids=["IPv4", "IPv6"]
)
def test_coordinators_are_asked_at_their_read_only_port_once_for_all_their_containers(address, asked):
    [monitor] = monitoring("PodMonitor")
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    found = ""
    for rule in endpoint["relabelings"]:
        # As Prometheus does it: the whole value must match.
        if rule["action"] == "replace" and (match := re.fullmatch(rule["regex"], address)):
            found = match.expand(rule["replacement"].replace("$1", r"\1"))
    assert found == asked
    assert endpoint["relabelings"][-1] == {"action": "labeldrop", "regex": "container"}
    assert asked.endswith(f":{contract.READONLY_PORT}")


def test_coordinators_of_the_served_namespaces_alone_are_asked():
    [monitor] = monitoring("PodMonitor", NAMESPACED)
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["red", "blue"]}
    assert monitoring("PodMonitor")[0]["spec"]["namespaceSelector"] == {"any": True}


def test_the_rules_and_the_dashboard_are_the_chart_s_files():
    [rule], [dashboard] = monitoring("PrometheusRule"), monitoring("ConfigMap")
    assert rule["spec"] == yaml.safe_load((CHART / "files/alerts.yaml").read_text())
    assert json.loads(dashboard["data"]["gradsieve.json"]) == json.loads(
        (CHART / "files/dashboard.json").read_text()
    )
