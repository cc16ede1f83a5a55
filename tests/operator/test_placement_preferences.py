"""Among the possible placements the gang's preference decides."""

from collections import Counter

from worlds import GPU, cluster, gang, gpu_node, load, node, pod, pods

from gradsieve_operator.placement import Assignment, plan


def nodes_of(world, wanted) -> dict[str, int]:
    """Node -> pods of the gang."""
    found = plan(world, wanted)
    assert isinstance(found, Assignment), found.message
    return dict(Counter(found.nodes.values()))


ONE_CPU = {"cpu": "1"}


def test_fastest_takes_as_few_nodes_as_possible():
    world = cluster(node("a", allocatable={"cpu": "2"}), node("b"), node("c", allocatable={"cpu": "2"}))
    assert nodes_of(world, gang(*pods(4, requests=ONE_CPU), placement="Fastest")) == {"b": 4}


def test_pack_takes_the_fullest_nodes():
    world = cluster(node("a"), node("b"), node("c"), loads=(load("b", cpu=6000), load("c", cpu=1000)))
    assert nodes_of(world, gang(*pods(4, requests=ONE_CPU), placement="Pack")) == {"b": 2, "c": 2}


def test_spread_takes_one_node_for_each_pod_while_there_are_any():
    world = cluster(node("a"), node("b"), node("c"), loads=(load("a", cpu=1000),))
    assert nodes_of(world, gang(*pods(2, requests=ONE_CPU), placement="Spread")) == {"b": 1, "c": 1}
    assert nodes_of(world, gang(*pods(4, requests=ONE_CPU), placement="Spread")) == {"a": 1, "b": 2, "c": 1}


def test_fastest_stays_in_one_zone_if_the_gang_fits_there():
    zones = [{"topology.kubernetes.io/zone": zone} for zone in ("x", "y")]
    big = {"cpu": "3"}
    world = cluster(
        node("a", labels=zones[0], allocatable=big),
        node("b", labels=zones[1], allocatable={"cpu": "2"}),
        node("c", labels=zones[1], allocatable={"cpu": "2"}),
    )
    assert nodes_of(world, gang(*pods(4, requests=ONE_CPU))) == {"b": 2, "c": 2}
    assert nodes_of(world, gang(*pods(6, requests=ONE_CPU))) == {"a": 3, "b": 2, "c": 1}


def test_gpu_products_are_taken_in_the_order_that_the_job_gives():
    world = cluster(gpu_node("a", "T4", 4), gpu_node("b", "A100", 4))
    one = pods(4, requests={GPU: 1})
    assert nodes_of(world, gang(*one, gpu_products=("A100", "T4"))) == {"b": 4}
    assert nodes_of(world, gang(*one, gpu_products=("T4", "A100"))) == {"a": 4}
    assert nodes_of(world, gang(*one, gpu_products=("A100",))) == {"b": 4}


def test_without_an_order_the_gpus_with_more_memory_come_first():
    small, large = ({"nvidia.com/gpu.memory": memory} for memory in ("15360", "81920"))
    world = cluster(gpu_node("a", "T4", 4, labels=small), gpu_node("b", "A100", 4, labels=large))
    assert nodes_of(world, gang(*pods(4, requests={GPU: 1}))) == {"b": 4}


def test_pods_without_gpus_leave_nodes_with_gpus_free():
    world = cluster(gpu_node("a", "T4", 4), node("b", allocatable={"cpu": "1"}))
    for placement in ("Fastest", "Pack", "Spread"):
        assert nodes_of(world, gang(*pods(1, requests=ONE_CPU), placement=placement)) == {"b": 1}
    assert nodes_of(world, gang(*pods(2, requests=ONE_CPU))) == {"a": 1, "b": 1}


def test_nodes_that_ask_to_be_avoided_are_taken_last():
    taint = {"taints": [{"key": "old", "effect": "PreferNoSchedule"}]}
    world = cluster(node("a", spec=taint), node("b", allocatable={"cpu": "1"}))
    assert nodes_of(world, gang(*pods(1, requests=ONE_CPU))) == {"b": 1}
    assert nodes_of(world, gang(*pods(3, requests=ONE_CPU))) == {"a": 2, "b": 1}


def test_groups_on_different_gpus_each_get_their_own():
    world = cluster(gpu_node("a", "A100", 2), gpu_node("b", "T4", 1), gpu_node("c", "T4", 1))
    selector = "nvidia.com/gpu.product"
    large = pods(2, "a100", requests={GPU: 1}, nodeSelector={selector: "A100"})
    small = pods(2, "t4", requests={GPU: 1}, nodeSelector={selector: "T4"})
    found = plan(world, gang(*large, *small, pod("job-coordinator-1", "", requests={"cpu": "100m"})))
    assert found.nodes["job-coordinator-1"] == "a"
    assert {found.nodes[item["metadata"]["name"]] for item in large} == {"a"}
    assert {found.nodes[item["metadata"]["name"]] for item in small} == {"b", "c"}


def test_a_preference_that_leads_nowhere_gives_way_to_any_placement():
    # Filling a first with the small pods would leave the large one without a place.
    world = cluster(
        node("a", allocatable={"cpu": "4", "memory": "4"}), node("b", allocatable={"cpu": "2", "memory": "8"})
    )
    large = pods(1, "large", requests={"cpu": "3", "memory": "1"})
    wide = pods(1, "wide", requests={"cpu": "1", "memory": "8"})
    small = pods(2, "small", requests={"cpu": "1", "memory": "0"})
    for placement in ("Fastest", "Pack", "Spread"):
        found = nodes_of(world, gang(*large, *wide, *small, placement=placement))
        assert found == {"a": 2, "b": 2}
