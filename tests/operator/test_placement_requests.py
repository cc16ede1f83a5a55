"""What a pod takes of its node is counted as the scheduler counts it."""

import pytest

from gradsieve_operator.errors import SpecError
from gradsieve_operator.placement import Load
from gradsieve_operator.placement.requests import pod_requests, shown


def container(requests=None, limits=None, **more):
    return {"name": "c", "resources": {"requests": requests or {}, "limits": limits or {}}, **more}


def test_containers_run_together_and_add_up():
    spec = {"containers": [container({"cpu": "500m", "memory": "1Gi"}), container({"cpu": 1})]}
    assert pod_requests(spec) == {"cpu": 1500, "memory": 2**30, "pods": 1}


def test_an_init_container_runs_alone():
    spec = {
        "containers": [container({"cpu": 1, "memory": "1Gi"})],
        "initContainers": [container({"cpu": 4}), container({"memory": "512Mi"})],
    }
    assert pod_requests(spec) == {"cpu": 4000, "memory": 2**30, "pods": 1}


def test_a_sidecar_runs_with_everything_after_it():
    sidecar = container({"cpu": 1}, restartPolicy="Always")
    spec = {
        "containers": [container({"cpu": 2})],
        "initContainers": [container({"cpu": 4}), sidecar, container({"cpu": 3})],
    }
    assert pod_requests(spec)["cpu"] == 4000
    spec["initContainers"][2] = container({"cpu": "3500m"})
    assert pod_requests(spec)["cpu"] == 4500


def test_a_limit_without_request_is_a_request():
    spec = {"containers": [container({"cpu": 1}, {"cpu": 2, "nvidia.com/gpu": 1})]}
    assert pod_requests(spec) == {"cpu": 1000, "nvidia.com/gpu": 1, "pods": 1}


def test_overhead_comes_on_top():
    spec = {"containers": [container({"cpu": 1})], "overhead": {"cpu": "250m"}}
    assert pod_requests(spec)["cpu"] == 1250


def test_requests_of_the_pod_take_the_place_of_its_containers():
    spec = {
        "containers": [container({"cpu": 1})],
        "resources": {"requests": {"cpu": 3}, "limits": {"memory": 8}},
    }
    assert pod_requests(spec) == {"cpu": 3000, "memory": 8, "pods": 1}


def test_a_port_of_the_host_is_held_once():
    spec = {"containers": [container(ports=[{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81}])]}
    assert pod_requests(spec) == {"hostPort/TCP/8080": 1, "pods": 1}
    assert pod_requests({**spec, "hostNetwork": True}) == {
        "hostPort/TCP/8080": 1,
        "hostPort/TCP/81": 1,
        "pods": 1,
    }


def test_a_sidecar_holds_ports_of_the_host_and_an_init_container_none():
    ports = [{"containerPort": 80, "hostPort": 8080}]
    sidecar = container(ports=ports, restartPolicy="Always")
    assert pod_requests({"initContainers": [sidecar], "containers": [container()]}) == {
        "hostPort/TCP/8080": 1,
        "pods": 1,
    }
    before = container(ports=ports)
    assert pod_requests({"initContainers": [before], "containers": [container()]}) == {"pods": 1}


def test_an_amount_that_cannot_be_read_is_named():
    with pytest.raises(SpecError, match=r"spec\.containers\[0\]\.resources\.requests\.cpu: is 'two'"):
        pod_requests({"containers": [container({"cpu": "two"})]})


def pinned(name):
    field = {"key": "metadata.name", "operator": "In", "values": [name]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


@pytest.mark.parametrize(
    ("spec", "status", "node"),
    [
        ({"nodeName": "a"}, {"phase": "Running"}, "a"),
        ({"affinity": pinned("a")}, {"phase": "Pending"}, "a"),
        ({}, {"phase": "Pending", "nominatedNodeName": "a"}, "a"),
        ({}, {"phase": "Pending"}, None),
        ({"nodeName": "a"}, {"phase": "Succeeded"}, None),
        ({"nodeName": "a"}, {"phase": "Failed"}, None),
    ],
    ids=["bound", "pinned", "nominated", "homeless", "succeeded", "failed"],
)
def test_a_pod_holds_its_node_from_the_moment_it_has_one_until_it_has_finished(spec, status, node):
    found = Load.parse({"metadata": {}, "spec": {"containers": [container()], **spec}, "status": status})
    assert (found and found.node) == node


def test_pods_of_jobs_end_some_day_and_others_are_not_known_to():
    raw = {"metadata": {"labels": {"gradsieve.io/job": "digits"}}, "spec": {"nodeName": "a"}}
    assert Load.parse(raw).ends
    assert not Load.parse({"metadata": {}, "spec": {"nodeName": "a"}}).ends


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        ("cpu", 2000, "cpu 2"),
        ("cpu", 250, "cpu 250m"),
        ("memory", 3 * 2**29, "memory 1536Mi"),
        ("memory", 1000, "memory 1000"),
        ("nvidia.com/gpu", 4, "nvidia.com/gpu 4"),
        ("hostPort/TCP/80", 1, "host port TCP/80"),
    ],
)
def test_amounts_are_shown_as_people_write_them(resource, amount, text):
    assert shown(resource, amount) == text
