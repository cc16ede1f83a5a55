"""The cluster is a real one: restricted pods run on three nodes and talk to each other by name."""

import json

import pytest
from cluster.binaries import kubernetes_version
from cluster.errors import ClusterError
from cluster.external import ExternalCluster
from cluster.pods import ARBITRARY_UID, pod

# How often one compiled function was found in the mounted cache, and how often it was not.
IMPORT = """
import torch
from gradsieve.kernels.numba_kernels import sum_and_list
print(sum(sum_and_list.stats.cache_hits.values()), sum(sum_and_list.stats.cache_misses.values()))
"""


def test_all_nodes_are_ready(cluster):
    assert sorted(cluster.ready_nodes()) == sorted(node.name for node in cluster.nodes)


def test_nodes_run_the_release_that_go_mod_names(cluster):
    if isinstance(cluster, ExternalCluster):
        pytest.skip("an external cluster has a release of its own")
    nodes = json.loads(cluster.kubectl("get", "nodes", "--output", "json"))["items"]
    assert {node["status"]["nodeInfo"]["kubeletVersion"] for node in nodes} == {f"v{kubernetes_version()}"}


def test_a_restricted_pod_answers_by_name_to_a_pod_on_another_node(cluster, namespace):
    first, second, *_ = cluster.nodes
    image = cluster.training_image
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "job", "namespace": namespace},
        "spec": {"clusterIP": "None", "selector": {"app": "web"}, "publishNotReadyAddresses": True},
    }
    server = pod(
        namespace,
        "web",
        image,
        ["python3", "-m", "http.server", "8000", "--directory", "/etc"],
        node=first.name,
        labels={"app": "web"},
        hostname="worker-0",
        subdomain="job",
    )
    asking = f"""
import os, time, urllib.request
deadline = time.monotonic() + 30
while True:
    try:
        answer = urllib.request.urlopen("http://worker-0.job.{namespace}.svc:8000/hostname", timeout=3)
        break
    except OSError:
        if time.monotonic() > deadline:
            raise
        time.sleep(0.2)
print("user", os.getuid(), "status", answer.status)
"""
    client = pod(
        namespace, "asking", image, ["python3", "-c", asking], node=second.name, restartPolicy="Never"
    )
    cluster.apply(service, server, client)
    cluster.wait_for_pod(namespace, "asking", "Succeeded")
    assert cluster.kubectl("logs", "--namespace", namespace, "asking") == f"user {ARBITRARY_UID} status 200\n"
    where = cluster.kubectl(
        "get", "pod", "--namespace", namespace, "web", "--output", "jsonpath={.spec.nodeName}"
    )
    assert where == first.name


def test_a_service_with_a_cluster_ip_reaches_its_pod_from_another_node(cluster, namespace):
    first, second, *_ = cluster.nodes
    image = cluster.training_image
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    serving = ["python3", "-m", "http.server", "8000", "--directory", "/etc"]
    asking = "import urllib.request; print(urllib.request.urlopen('http://web/hostname', timeout=5).status)"
    cluster.apply(
        service,
        pod(namespace, "web", image, serving, node=first.name, labels={"app": "web"}),
        pod(namespace, "asking", image, ["sleep", "600"], node=second.name),
    )
    cluster.wait_for_pod(namespace, "web", "Running")
    cluster.wait_for_pod(namespace, "asking", "Running")
    cluster.retry(lambda: cluster.execute(namespace, "asking", "python3", "-c", asking) == "200\n")


def test_a_pod_runs_commands_for_kubectl_exec(cluster, namespace):
    cluster.apply(pod(namespace, "idle", cluster.training_image, ["sleep", "600"]))
    cluster.wait_for_pod(namespace, "idle", "Running")
    assert cluster.execute(namespace, "idle", "id", "--user") == f"{ARBITRARY_UID}\n"
    with pytest.raises(ClusterError, match="Read-only file system"):
        cluster.execute(namespace, "idle", "touch", "/etc/written")


def test_a_pod_that_is_not_restricted_is_refused(cluster, namespace):
    privileged = pod(namespace, "privileged", cluster.pause_image, hostNetwork=True)
    with pytest.raises(ClusterError, match='violates PodSecurity "restricted:latest": host namespaces'):
        cluster.apply(privileged)


def test_a_pod_imports_the_project_with_its_compiled_kernels_and_cannot_change_it(cluster, namespace):
    if isinstance(cluster, ExternalCluster):
        pytest.skip("an external cluster mounts nothing: its image has the packages")
    import gradsieve.kernels  # noqa: F401 - compiled for this machine from here on

    python = cluster.python_volume(namespace)
    cluster.apply(
        pod(namespace, "python", cluster.training_image, ["sleep", "600"], python=python),
    )
    cluster.wait_for_pod(namespace, "python", "Running")
    assert cluster.execute(namespace, "python", "python3", "-c", IMPORT, timeout=240) == "1 0\n"
    for mount in python.mounts:
        with pytest.raises(ClusterError, match="Read-only file system"):
            cluster.execute(namespace, "python", "touch", f"{mount['mountPath']}/written")
