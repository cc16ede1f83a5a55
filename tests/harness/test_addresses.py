"""Clusters side by side share no name and no address, and what one cluster addresses never overlaps."""

from itertools import combinations

from cluster.addresses import MOST_NODES, SLOTS, Addresses
from cluster.slots import state_folder

ALL = [Addresses(slot) for slot in range(SLOTS)]
LONGEST_INTERFACE = 15  # the kernel's IFNAMSIZ, without the final zero
LONGEST_SOCKET = 107


def test_clusters_share_no_network_and_no_name():
    assert not any(one.network.overlaps(other.network) for one, other in combinations(ALL, 2))
    assert len({it.link for it in ALL}) == len({it.cgroup for it in ALL}) == SLOTS


def test_every_address_lies_in_the_network_that_the_machine_routes():
    for it in ALL:
        single = [it.api, it.machine, it.hub, it.api_service]
        assert all(address in it.network for address in single)
        assert all(it.pods(node).subnet_of(it.network) for node in range(1, MOST_NODES + 1))
        assert it.services.subnet_of(it.network)


def test_parts_of_a_cluster_overlap_nowhere():
    it = ALL[0]
    nodes = range(1, MOST_NODES + 1)
    networks = [it.services, *(it.pods(node) for node in nodes)]
    assert not any(one.overlaps(other) for one, other in combinations(networks, 2))
    single = [it.api, it.machine, it.hub, *(it.node(node) for node in nodes)]
    assert len(set(single)) == len(single)
    assert not any(address in network for address in single for network in networks)
    assert it.api_service in it.services


def test_names_are_as_short_as_the_kernel_wants_them():
    assert all(len(it.link) <= LONGEST_INTERFACE for it in ALL)
    socket = state_folder(SLOTS - 1) / f"n{MOST_NODES}" / "containerd.sock.ttrpc"
    assert len(str(socket)) <= LONGEST_SOCKET
