"""What a job's children look like, whole and by law."""

import copy
import json
import re

import horovod_jobs as jobs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsieve_operator import contract
from gradsieve_operator.resources import (
    Neighbours,
    coordinator,
    origin,
    shared_children,
    worker,
)
from gradsieve_operator.resources.template import scratch_size
from gradsieve_operator.spec import HorovodJob
from gradsieve_operator.spec.values import MAX_WORKERS

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
OWNER = {
    "apiVersion": "gradsieve.io/v1alpha1",
    "kind": "HorovodJob",
    "name": "digits",
    "uid": "uid-of-digits",
    "controller": True,
    "blockOwnerDeletion": True,
}
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def build(job: HorovodJob, index: int = 0, node: str | None = "n1", **changed) -> dict:
    given = {"generation": 3, "authority": "ab", "node": node, **changed}
    return worker(job, job.groups[0], index, **given)


def environment(pod: dict) -> dict[str, str]:
    return {v["name"]: v.get("value") for v in pod["spec"]["containers"][0]["env"]}


def test_a_workers_pod():
    job = jobs.job(
        jobs.group(
            "a100",
            2,
            slotsPerWorker=2,
            container={
                "args": ["--epochs", "2"],
                "env": [{"name": "SEED", "value": "1"}],
                "resources": {"limits": {"memory": "2Gi", "nvidia.com/gpu": "2"}},
                "securityContext": RESTRICTED,
            },
        )
    )
    assert build(job, index=1) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "digits-a100-1-3",
            "namespace": "research",
            "labels": {
                "gradsieve.io/job": "digits",
                "gradsieve.io/role": "worker",
                "gradsieve.io/group": "a100",
                "gradsieve.io/index": "1",
                "gradsieve.io/generation": "3",
            },
            "annotations": {
                "gradsieve.io/authority": "ab",
                "gradsieve.io/origin": origin(job),
            },
            "ownerReferences": [OWNER],
        },
        "spec": {
            "hostname": "a100-1",
            "subdomain": "digits",
            "restartPolicy": "Never",
            "serviceAccountName": "digits",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 30,
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
                        ]
                    }
                }
            },
            "containers": [
                {
                    "name": "train",
                    "image": "train:1",
                    "command": ["python3", "-m", "gradsieve_hvd", "agent"],
                    "resources": {"limits": {"memory": "2Gi", "nvidia.com/gpu": "2"}},
                    "securityContext": RESTRICTED,
                    "env": [
                        {
                            "name": "GRADSIEVE_POD_UID",
                            "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}},
                        },
                        {"name": "GRADSIEVE_JOB", "value": "digits"},
                        {"name": "GRADSIEVE_NAMESPACE", "value": "research"},
                        {"name": "GRADSIEVE_GENERATION", "value": "3"},
                        {"name": "GRADSIEVE_TLS_DIR", "value": "/var/run/gradsieve/tls"},
                        {
                            "name": "GRADSIEVE_COORDINATOR",
                            "value": "https://coordinator.digits.research.svc:7443",
                        },
                        {"name": "GRADSIEVE_HOST", "value": "a100-1"},
                        {"name": "GRADSIEVE_WORKER_GROUP", "value": "a100"},
                        {"name": "GRADSIEVE_SLOTS", "value": "2"},
                        {"name": "GRADSIEVE_STATE_DIR", "value": "/dev/shm/gradsieve"},
                        {"name": "HOME", "value": "/tmp"},
                        {"name": "TMPDIR", "value": "/tmp"},
                        {"name": "SEED", "value": "1"},
                    ],
                    "volumeMounts": [
                        {"name": "gradsieve-tls", "mountPath": "/var/run/gradsieve/tls", "readOnly": True},
                        {"name": "gradsieve-scratch", "mountPath": "/tmp"},
                        {"name": "gradsieve-shm", "mountPath": "/dev/shm"},
                    ],
                }
            ],
            "volumes": [
                {
                    "name": "gradsieve-tls",
                    "projected": {
                        "sources": [
                            {
                                "secret": {
                                    "name": "digits-workers-tls",
                                    "items": [
                                        {"key": "ca.crt", "path": "ca.crt"},
                                        {"key": "a100-1.crt", "path": "tls.crt"},
                                        {"key": "a100-1.key", "path": "tls.key"},
                                    ],
                                }
                            }
                        ],
                        "defaultMode": 0o444,
                    },
                },
                {"name": "gradsieve-scratch", "emptyDir": {"sizeLimit": "10Gi"}},
                {"name": "gradsieve-shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(1 << 30)}},
            ],
        },
    }


@pytest.mark.parametrize(
    ("limits", "size"),
    [
        pytest.param({}, "10Gi", id="no limit"),
        pytest.param({"ephemeral-storage": "2Gi"}, "2Gi", id="that of its local storage"),
    ],
)
def test_scratch_space_is_limited(limits, size):
    assert scratch_size({"resources": {"limits": limits}}) == size


def test_a_coordinators_pod_has_the_first_groups_surroundings_and_none_of_its_gpus():
    job = jobs.job(
        jobs.group(
            "a100",
            container={
                "resources": {"limits": {"nvidia.com/gpu": "8"}},
                "securityContext": RESTRICTED,
                "env": [{"name": "LANG", "value": "C"}],
                "volumeMounts": [{"name": "code", "mountPath": "/code"}],
            },
            pod={
                "imagePullSecrets": [{"name": "registry"}],
                "volumes": [{"name": "code", "emptyDir": {}}],
                "securityContext": {"runAsNonRoot": True},
            },
        )
    )
    pod = coordinator(job, attempt=2, authority="ab", node="n1")
    container = pod["spec"]["containers"][0]
    assert pod["metadata"]["name"] == "digits-coordinator-2"
    assert pod["metadata"]["labels"] == {"gradsieve.io/job": "digits", "gradsieve.io/role": "coordinator"}
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("coordinator", "digits")
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["spec"]["securityContext"] == {"runAsNonRoot": True}
    assert container["command"] == ["python3", "-m", "gradsieve_hvd", "coordinator"]
    assert container["securityContext"] == RESTRICTED
    assert container["resources"] == {
        "requests": {"cpu": "100m", "memory": "256Mi"},
        "limits": {"cpu": "2", "memory": "1Gi"},
    }
    assert environment(pod)["GRADSIEVE_LISTEN"] == "0.0.0.0:7443"
    assert environment(pod)["GRADSIEVE_READONLY_LISTEN"] == "0.0.0.0:7480"
    assert environment(pod)["LANG"] == "C"
    assert {"name": "code", "mountPath": "/code"} in container["volumeMounts"]
    tls = next(v for v in pod["spec"]["volumes"] if v["name"] == "gradsieve-tls")
    assert tls["projected"]["sources"] == [{"secret": {"name": "digits-coordinator-tls"}}]


def test_a_launcher_template_takes_the_place_of_the_first_groups():
    template = jobs.group("x", container={"image": "launcher:1", "resources": {"limits": {"cpu": "1"}}})[
        "template"
    ]
    pod = coordinator(jobs.job(launcher={"template": template}), attempt=1, authority="ab", node=None)
    assert pod["spec"]["containers"][0]["image"] == "launcher:1"
    assert pod["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "1"}}
    assert "affinity" not in pod["spec"]


def test_the_shared_children():
    account, described, service, policy = shared_children(jobs.job(), Neighbours(operator_namespace="gs"))
    assert {
        (c["metadata"]["name"], c["metadata"]["namespace"]) for c in (account, described, service, policy)
    } == {("digits", "research")}
    assert account["automountServiceAccountToken"] is False
    assert json.loads(described["data"]["job.json"]) == {
        "backend": "MPI",
        "name": "digits",
        "namespace": "research",
    }
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"gradsieve.io/job": "digits"}
    assert policy["spec"] == {
        "podSelector": {"matchLabels": {"gradsieve.io/job": "digits"}},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [{"podSelector": {"matchLabels": {"gradsieve.io/job": "digits"}}}]},
            {
                "from": [
                    {
                        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gs"}},
                        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "gradsieve-operator"}},
                    }
                ],
                "ports": [{"protocol": "TCP", "port": 7443}],
            },
            {
                "from": [{"namespaceSelector": {"matchLabels": {"gradsieve.io/monitoring": "true"}}}],
                "ports": [{"protocol": "TCP", "port": 7480}],
            },
        ],
    }


def test_a_queue_puts_kueues_labels_on_workers_and_not_on_the_coordinator():
    job = jobs.job(jobs.group("a", 2), jobs.group("b", 1), scheduling={"queueName": "team"})
    pod = build(job, node=None)
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] == "digits"
    assert pod["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "3"
    launcher = coordinator(job, attempt=1, authority="ab", node=None)
    assert not any(label.startswith("kueue") for label in launcher["metadata"]["labels"])


def test_every_alternative_of_the_users_affinity_is_pinned():
    terms = [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
        for zone in ("east", "west")
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    job = jobs.job(
        jobs.group(
            "a",
            container={"resources": {"limits": {"nvidia.com/gpu": "1"}}},
            pod={"affinity": {"nodeAffinity": required, "podAffinity": {"x": 1}}},
        ),
        scheduling={"gpuProducts": ["T4"]},
    )
    affinity = build(job)["spec"]["affinity"]
    pinned = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert affinity["podAffinity"] == {"x": 1}
    assert [term["matchFields"][0]["values"] for term in pinned] == [["n1"], ["n1"]]
    assert [term["matchExpressions"][0]["values"] for term in pinned] == [["east"], ["west"]]
    assert [term["matchExpressions"][1]["values"] for term in pinned] == [["T4"], ["T4"]]


def test_what_the_user_mounts_or_sets_stays():
    mounts = [{"name": "mine", "mountPath": "/tmp/"}, {"name": "big", "mountPath": "/dev/shm"}]
    job = jobs.job(
        jobs.group("a", container={"volumeMounts": mounts, "env": [{"name": "HOME", "value": "/home/me"}]})
    )
    pod = build(job)
    assert environment(pod)["HOME"] == "/home/me"
    assert [volume["name"] for volume in pod["spec"]["volumes"]] == ["gradsieve-tls"]


labels = st.dictionaries(
    st.from_regex(r"[a-z]{1,8}(\.io/[a-z]{1,5})?", fullmatch=True),
    st.sampled_from(["", "x", "y"]),
    max_size=4,
)
names = st.from_regex(r"[a-z]([-a-z0-9]{0,30}[a-z0-9])?", fullmatch=True)
group_names = names.filter(lambda name: name != "coordinator")


@given(names, group_names, labels, labels, st.integers(1, MAX_WORKERS), st.integers(1, 10**9), st.booleans())
def test_names_are_valid_nothing_of_the_users_is_lost_and_nothing_is_changed(
    name, group, user_labels, user_annotations, replicas, generation, tolerates
):
    given = {"labels": user_labels, "annotations": user_annotations}
    pod = {"tolerations": [{"operator": "Exists"}]} if tolerates else {}
    source = jobs.body(jobs.group(group, replicas, metadata=given, pod=pod), name=name)
    untouched = copy.deepcopy(source)
    job = HorovodJob.parse(source)
    made = build(job, index=replicas - 1, generation=generation)
    again = build(HorovodJob.parse(untouched), index=replicas - 1, generation=generation)
    launcher = coordinator(job, attempt=generation, authority="ab", node=None)
    for child in (made, launcher):
        assert DNS_LABEL.fullmatch(child["spec"]["hostname"])
        assert DNS_LABEL.fullmatch(child["spec"]["subdomain"])
        assert len(child["metadata"]["name"]) <= 253
        assert user_labels.items() <= child["metadata"]["labels"].items()
        assert user_annotations.items() <= child["metadata"]["annotations"].items()
        assert child["spec"].get("tolerations") == pod.get("tolerations")
    assert made == again
    assert source == untouched


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 99)), min_size=2, max_size=2, unique=True))
def test_two_incarnations_never_share_a_name(which):
    job = jobs.job(jobs.group("a", 40))
    first, second = (build(job, index=i, generation=g)["metadata"]["name"] for i, g in which)
    assert first != second


def test_the_longest_names_still_fit():
    job = jobs.job(jobs.group("g" * 40, MAX_WORKERS), name="j" * 63)
    pod = build(job, index=MAX_WORKERS - 1, generation=10**9)
    assert len(pod["spec"]["hostname"]) <= 63
    assert len(contract.service_address(pod["spec"]["hostname"], job.name, "n" * 63)) <= 253
    assert len(pod["metadata"]["name"]) <= 253


def test_an_operator_outside_of_the_cluster_may_call_the_coordinator_from_its_addresses():
    policy = shared_children(jobs.job(), Neighbours(operator_cidrs=("10.0.0.1/32",)))[-1]
    assert policy["spec"]["ingress"][1] == {
        "from": [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
        "ports": [{"protocol": "TCP", "port": 7443}],
    }
