"""NetworkPolicies hold: each refusal stands beside the same connection without it, and one allowed."""

import json

import pytest
from cluster.errors import ClusterError
from cluster.pods import pod

CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2).close()
except TimeoutError:
    print("dropped")
else:
    print("connected")
"""
LISTEN = """
import socket, threading
def serve(port):
    listener = socket.create_server(("0.0.0.0", port))
    while True:
        listener.accept()[0].close()
for port in (7443, 7480):
    threading.Thread(target=serve, args=(port,)).start()
"""
_QUICKLY = "timeout:1 attempts:1"  # instead of 5 s and twice, for each domain that is searched
RESOLVE = (
    f"import os, socket; os.environ['RES_OPTIONS'] = '{_QUICKLY}'; "
    "print(socket.gethostbyname('kubernetes.default.svc'))"
)


@pytest.fixture
def addresses(cluster, namespace):
    """Addresses of pods `server`, `neighbour` (first node), `member` and `stranger` (second node)."""
    first, second, *_ = cluster.nodes
    image = cluster.training_image
    ports = {"ports": [{"name": "control", "containerPort": 7443}]}
    serving = {"command": ["python3", "-c", LISTEN], "container": ports}
    idle = {"command": ["sleep", "600"]}
    for name, node, options in [
        ("server", first, serving),
        ("neighbour", first, idle),
        ("member", second, idle),
        ("stranger", second, idle),
    ]:
        job = {"job": "other" if name == "stranger" else "mine"}
        cluster.apply(pod(namespace, name, image, node=node.name, labels={"name": name} | job, **options))
    found = {}
    for name in ("server", "neighbour", "member", "stranger"):
        cluster.wait_for_pod(namespace, name, "Running")
        read = cluster.kubectl("get", "pod", "--namespace", namespace, name, "--output", "json")
        found[name] = json.loads(read)["status"]["podIP"]
    return found


@pytest.fixture
def outcome(cluster, namespace, addresses):
    """What becomes of a connection from a pod to a port of the pod `server`."""

    def connect(source, port=7443, target="server"):
        command = ["python3", "-c", CONNECT, addresses[target], str(port)]
        return cluster.execute(namespace, source, *command).strip()

    return connect


@pytest.fixture
def enforce(cluster, namespace):
    def apply(**spec):
        kind = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
        cluster.apply({**kind, "metadata": {"name": "tested", "namespace": namespace}, "spec": spec})
        cluster.settle_policies()

    return apply


def test_only_pods_that_a_policy_names_get_in_and_all_do_without_it(cluster, namespace, outcome, enforce):
    everyone = ["neighbour", "member", "stranger"]
    assert {source: outcome(source) for source in everyone} == dict.fromkeys(everyone, "connected")
    enforce(
        podSelector={"matchLabels": {"name": "server"}},
        ingress=[{"from": [{"podSelector": {"matchLabels": {"job": "mine"}}}]}],
    )
    assert {source: outcome(source) for source in everyone} == {
        "neighbour": "connected",
        "member": "connected",
        "stranger": "dropped",
    }
    cluster.kubectl("delete", "networkpolicy", "--namespace", namespace, "tested")
    cluster.settle_policies()
    assert {source: outcome(source) for source in everyone} == dict.fromkeys(everyone, "connected")


def test_a_policy_without_rules_closes_a_pod_also_to_its_neighbours_on_the_node(outcome, enforce):
    enforce(podSelector={"matchLabels": {"name": "server"}}, policyTypes=["Ingress"])
    assert outcome("neighbour") == "dropped"
    assert outcome("member") == "dropped"


def test_a_policy_opens_a_named_port_and_no_other(outcome, enforce):
    assert outcome("member", 7480) == "connected"
    enforce(podSelector={}, ingress=[{"ports": [{"port": "control"}]}])
    assert outcome("member", 7443) == "connected"
    assert outcome("member", 7480) == "dropped"


def test_a_pod_whose_way_out_is_closed_reaches_only_what_the_policy_allows(
    cluster, namespace, outcome, enforce
):
    enforce(
        podSelector={"matchLabels": {"name": "member"}},
        policyTypes=["Egress"],
        egress=[{"to": [{"podSelector": {"matchLabels": {"name": "server"}}}], "ports": [{"port": 7443}]}],
    )
    assert outcome("member", 7443) == "connected"
    assert outcome("member", 7480) == "dropped"
    assert outcome("stranger", 7480) == "connected"
    with pytest.raises(ClusterError, match="Temporary failure in name resolution"):
        cluster.execute(namespace, "member", "python3", "-c", RESOLVE)
    dns = {"matchLabels": {"k8s-app": "kube-dns"}}
    enforce(
        podSelector={"matchLabels": {"name": "member"}},
        policyTypes=["Egress"],
        egress=[
            {
                "to": [{"namespaceSelector": {}, "podSelector": dns}],
                "ports": [{"port": 53, "protocol": "UDP"}],
            }
        ],
    )
    assert cluster.execute(namespace, "member", "python3", "-c", RESOLVE).strip()
    assert outcome("member", 7443) == "dropped"
