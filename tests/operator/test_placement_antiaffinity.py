"""Pods that are there keep others away as the scheduler has it, as far as the operator can see that."""

import pytest
from worlds import cluster, gang, node, pods

from gradsieve_operator.placement import Load, plan

OURS = {"key": "gradsieve.io/job", "operator": "Exists"}
ANY_OF_OURS = {"matchExpressions": [OURS]}
HOST = "kubernetes.io/hostname"
NODES = tuple(
    node(name, labels={HOST: name, "rack": rack}) for name, rack in (("a", "r1"), ("b", "r1"), ("c", "r2"))
)


def guard(*, namespace: str = "other", where: str = "a", labels=None, **term) -> Load:
    """A pod on a node, with one term of required anti-affinity."""
    term = {"topologyKey": HOST, "labelSelector": ANY_OF_OURS, **term}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    found = Load.parse(
        {
            "metadata": {"name": "guard", "namespace": namespace, "labels": labels or {}},
            "spec": {"nodeName": where, "containers": [], "affinity": affinity},
        }
    )
    assert found is not None
    return found


def wanting(count: int, group: str = "workers"):
    found = pods(count, group, requests={"cpu": 8})
    for index, pod in enumerate(found):
        pod["metadata"]["namespace"] = "research"
        pod["metadata"]["labels"] |= {"gradsieve.io/job": "digits", "gradsieve.io/index": str(index)}
    return gang(*found)


def places(world) -> set[str]:
    """The nodes that are left to our pods, each of which needs a whole one."""
    most = max(count for count in (1, 2, 3) if hasattr(plan(world, wanting(count)), "nodes"))
    return set(plan(world, wanting(most)).nodes.values())


EVERYWHERE = {"namespaceSelector": {}}


@pytest.mark.parametrize(
    ("term", "left"),
    [
        pytest.param(EVERYWHERE, "bc", id="in all namespaces"),
        pytest.param({"namespaces": ["research"]}, "bc", id="in a namespace by name"),
        pytest.param({"namespaces": ["else"]}, "abc", id="in another namespace"),
        pytest.param({}, "abc", id="in its own namespace"),
        pytest.param({**EVERYWHERE, "topologyKey": "rack"}, "c", id="in the whole rack"),
        pytest.param({**EVERYWHERE, "topologyKey": "room"}, "abc", id="by a label that its node has not"),
        pytest.param({**EVERYWHERE, "labelSelector": {}}, "bc", id="all pods"),
        pytest.param({**EVERYWHERE, "labelSelector": None}, "abc", id="no pods"),
        pytest.param(
            {**EVERYWHERE, "labelSelector": {"matchLabels": {"gradsieve.io/group": "workers"}}},
            "bc",
            id="a group of workers",
        ),
        pytest.param(
            {**EVERYWHERE, "labelSelector": {"matchExpressions": [{**OURS, "operator": "DoesNotExist"}]}},
            "abc",
            id="all but ours",
        ),
        pytest.param(
            {**EVERYWHERE, "labelSelector": {"matchLabels": {"gradsieve.io/index": "0"}}},
            "abc",
            id="one worker, which only the scheduler can tell",
        ),
        pytest.param(
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "research"}}},
            "bc",
            id="in a namespace by the label with its name",
        ),
        pytest.param(
            {"namespaceSelector": {"matchLabels": {"team": "vision"}}},
            "abc",
            id="in namespaces by labels, which only the scheduler can tell",
        ),
        pytest.param(
            {"namespaceSelector": {"matchLabels": {"team": "vision"}}, "namespaces": ["research"]},
            "bc",
            id="by labels, or by name",
        ),
    ],
)
def test_a_pod_s_required_anti_affinity_closes_the_nodes_of_its_domain(term, left):
    assert places(cluster(*NODES, loads=(guard(**term),))) == set(left)


def test_a_pod_of_our_own_namespace_keeps_us_away_without_naming_it():
    assert places(cluster(*NODES, loads=(guard(namespace="research"),))) == {"b", "c"}


def test_the_domains_of_several_pods_add_up_and_an_unknown_node_closes_nothing():
    guards = (guard(**EVERYWHERE), guard(where="b", **EVERYWHERE), guard(where="gone", **EVERYWHERE))
    assert places(cluster(*NODES, loads=guards)) == {"c"}


def test_what_is_missing_says_so():
    found = plan(cluster(*NODES, loads=(guard(**EVERYWHERE),)), wanting(3))
    assert "1 node is closed to such pods by another pod's anti-affinity" in found.message


def test_a_job_s_own_pod_keeps_others_away_only_until_it_has_ended():
    guarding = guard(labels={"gradsieve.io/job": "free"}, **EVERYWHERE)
    world = cluster(*NODES, loads=(guarding,))
    assert places(world) == {"b", "c"}
    assert places(world.when_jobs_have_ended()) == {"a", "b", "c"}


def test_workers_that_differ_in_their_index_only_are_placed_together():
    assert [shape.count for shape in wanting(3).shapes] == [3]
