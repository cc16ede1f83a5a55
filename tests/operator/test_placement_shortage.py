"""A gang without a place is told what is missing where, in a sentence."""

from worlds import GPU, cluster, gang, gpu_node, load, node, pods

from gradsieve_operator.placement import plan

SELECTOR = {"nvidia.com/gpu.product": "A100"}


def message(world, *manifests, **more) -> str:
    return plan(world, gang(*manifests, **more)).message


def test_it_says_what_each_pod_needs_and_where_some_could_start():
    world = cluster(
        gpu_node("node-1", "A100", 4),
        gpu_node("node-2", "A100", 4),
        gpu_node("node-3", "T4", 4),
        node("node-4", spec={"unschedulable": True}),
        loads=(load("node-1", gpu=2), load("node-2", gpu=4)),
    )
    text = message(world, *pods(4, "a100", requests={GPU: 1, "cpu": "500m"}, nodeSelector=SELECTOR))
    assert text == (
        "a100 needs 4 pods of cpu 500m, nvidia.com/gpu 1: 2 can start now (node-1: 2); too little is free on "
        "node-2 (nvidia.com/gpu 0); 1 node is cordoned; 1 node is not labelled nvidia.com/gpu.product=A100"
    )


def test_an_empty_cluster_is_called_so():
    assert (
        message(cluster(), *pods(1, requests={"cpu": "1"}))
        == "workers needs 1 pod of cpu 1: there is no node"
    )


def test_only_the_groups_that_lack_something_are_named():
    world = cluster(node("a"), gpu_node("b", "T4", 1))
    text = message(world, *pods(1, "cpu", requests={"cpu": "1"}), *pods(2, "gpu", requests={GPU: 1}))
    assert text.startswith("gpu needs 2 pods")
    assert "cpu needs" not in text


def test_groups_that_stand_in_each_other_s_way_are_told_so():
    world = cluster(node("a", allocatable={"cpu": "3"}))
    text = message(world, *pods(1, "x", requests={"cpu": "2"}), *pods(1, "y", requests={"cpu": "2"}))
    assert text == "each group has room for itself, but not all of them together"


def test_a_large_cluster_is_summed_up():
    world = cluster(*(node(f"n{index:03}", allocatable={"cpu": "1"}) for index in range(500)))
    text = message(world, *pods(1, requests={"cpu": "2"}))
    assert "and 496 more nodes" in text
    assert len(text) < 300


def test_the_places_for_pods_count_too():
    text = message(cluster(node("a", pods=1)), *pods(2, requests={"cpu": "1"}))
    assert text == "workers needs 2 pods of cpu 1: 1 can start now (a: 1)"
