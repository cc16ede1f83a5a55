"""A large cluster is planned in a moment."""

import time

import pytest
from worlds import GPU, cluster, gang, gpu_node, load, node, place, pods

from gradsieve_operator.placement import Assignment, Shortage

LIMIT = 1.0
"""Seconds of processor time; some twenty times what is measured."""

NODES = [
    *(
        gpu_node(f"gpu-{index:03}", ("A100", "T4")[index % 2], 8, allocatable={"cpu": "64"})
        for index in range(250)
    ),
    *(node(f"cpu-{index:03}", allocatable={"cpu": "64"}) for index in range(250)),
]
LOADS = tuple(
    load(
        NODES[index % 500].name,
        cpu=(100, 250, 310)[index % 3],
        memory=2**20 * (index % 64),
        gpu=index % 500 < 250 and index // 500 < 7,
    )
    for index in range(10_000)
)


def seconds(action) -> float:
    started = time.thread_time()
    action()
    return time.thread_time() - started


@pytest.mark.parametrize("placement", ["Fastest", "Pack", "Spread"])
def test_a_gang_of_64_pods_among_10_000_on_500_nodes(placement):
    groups = [
        pods(16, f"g{number}", requests={GPU: number % 2, "cpu": f"{number + 1}"}) for number in range(4)
    ]
    wanted = gang(*(item for group in groups for item in group), placement=placement)
    found = []
    spent = min(
        seconds(lambda: found.append(place(cluster(*NODES, loads=LOADS), wanted, []))) for _ in range(3)
    )
    assert isinstance(found[0], Assignment)
    assert spent < LIMIT


def test_a_gang_for_which_there_is_no_room():
    groups = [pods(64, f"g{number}", requests={GPU: 1, "cpu": f"{number + 1}"}) for number in range(4)]
    wanted = gang(*(item for group in groups for item in group))
    found = []
    spent = seconds(lambda: found.append(place(cluster(*NODES, loads=LOADS), wanted, [])))
    assert isinstance(found[0], Shortage)
    assert spent < 4 * LIMIT
