"""What tests may do to a node: slow its link or its processors, stop its kubelet, cut it off."""

import json
import time

import pytest
from cluster.control_plane import NODE_GRACE_SECONDS
from cluster.errors import ClusterError
from cluster.pods import pod

MEGABYTES = 4
RATE = 8  # Mbit/s: 1 MB/s, slow against anything else that happens on a busy machine
SERVE = f"""
import socket
listener = socket.create_server(("0.0.0.0", 8000))
while True:
    connection, _ = listener.accept()
    connection.sendall(bytes({MEGABYTES} << 20))
    connection.close()
"""
FETCH = """
import socket, sys, time
started, received = time.monotonic(), 0
with socket.create_connection((sys.argv[1], 8000), timeout=10) as connection:
    while chunk := connection.recv(1 << 16):
        received += len(chunk)
print(received, time.monotonic() - started)
"""
# Work that ends by a clock and counts the processor time that it got.
BURN = """
import time
end = time.monotonic() + 3
while time.monotonic() < end:
    pass
print(time.process_time())
"""
NOT_READY_SECONDS = NODE_GRACE_SECONDS + 60


@pytest.fixture
def pods(cluster, namespace):
    """One pod that serves on the first node, one that idles on the second; returns where the first is."""
    first, second, *_ = cluster.nodes
    image = cluster.training_image
    cluster.apply(
        pod(namespace, "serving", image, ["python3", "-c", SERVE], node=first.name),
        pod(namespace, "idle", image, ["sleep", "600"], node=second.name),
    )
    for name in ("serving", "idle"):
        cluster.wait_for_pod(namespace, name, "Running")
    found = cluster.kubectl("get", "pod", "--namespace", namespace, "serving", "--output", "json")
    return json.loads(found)["status"]["podIP"]


def fetch_seconds(cluster, namespace, address):
    received, seconds = cluster.execute(namespace, "idle", "python3", "-c", FETCH, address).split()
    assert int(received) == MEGABYTES << 20
    return float(seconds)


def test_a_shaped_link_carries_its_rate_and_no_more_until_the_limit_is_lifted(cluster, namespace, pods):
    node = cluster.nodes[0]
    at_rate = MEGABYTES * (1 << 20) * 8 / (RATE * 1e6)
    cluster.retry(lambda: fetch_seconds(cluster, namespace, pods) < at_rate / 2)
    node.shape_link(f"{RATE}mbit")
    try:
        # The queue and the burst let a little through at once; a busy machine may take longer.
        assert 0.9 * at_rate < fetch_seconds(cluster, namespace, pods) < 3 * at_rate
    finally:
        node.shape_link(None)
    cluster.retry(lambda: fetch_seconds(cluster, namespace, pods) < at_rate / 2)


def burn_seconds(cluster, namespace):
    return float(cluster.execute(namespace, "idle", "python3", "-c", BURN))


def test_pods_of_a_throttled_node_get_the_share_of_a_processor_and_no_more(cluster, namespace, pods):
    node = cluster.nodes[1]
    before = node.seconds_throttled()
    # Where others are before them, pods use up their tenth late in a period and are held back for less of it.
    with cluster.pods_first():
        node.throttle_cpu(0.1)
        try:
            throttled = burn_seconds(cluster, namespace)
        finally:
            node.throttle_cpu(None)
    lifted = node.seconds_throttled()
    assert throttled < 0.45  # a tenth of three seconds, and the start of Python
    assert lifted - before > 1.5
    # What else runs on the machine leaves pods now and then hardly more than the limit did.
    cluster.retry(lambda: burn_seconds(cluster, namespace) > 2 * throttled)
    assert node.seconds_throttled() == lifted


def test_a_pod_with_a_cpu_limit_starts_on_a_throttled_node(cluster, namespace):
    node = cluster.nodes[1]
    node.throttle_cpu(0.2)
    try:
        limited = {"resources": {"limits": {"cpu": "1"}}}
        cluster.apply(pod(namespace, "limited", cluster.pause_image, node=node.name, container=limited))
        cluster.wait_for_pod(namespace, "limited", "Running")
    finally:
        node.throttle_cpu(None)


def test_a_node_whose_kubelet_is_stopped_becomes_not_ready_and_its_pods_go_on(cluster, namespace, pods):
    node = cluster.nodes[0]
    node.stop_kubelet()
    try:
        cluster.wait_until_not_ready(node.name, NOT_READY_SECONDS)
        fetch_seconds(cluster, namespace, pods)
    finally:
        node.start_kubelet()
    cluster.wait_until_ready(node.name, NOT_READY_SECONDS)


def test_a_node_that_is_cut_off_is_unreachable_and_comes_back(cluster, namespace, pods):
    node = cluster.nodes[0]
    node.cut_off()
    try:
        with pytest.raises(ClusterError, match="timed out|No route"):
            fetch_seconds(cluster, namespace, pods)
        cluster.wait_until_not_ready(node.name, NOT_READY_SECONDS)
    finally:
        node.reconnect()
    cluster.wait_until_ready(node.name, NOT_READY_SECONDS)
    cluster.retry(lambda: fetch_seconds(cluster, namespace, pods) > 0)


def test_pods_that_ask_for_gpus_go_where_enough_of_the_right_ones_are(cluster, namespace):
    first, second, *_ = cluster.nodes
    first.label_gpu("NVIDIA-A100-SXM4-80GB", 2, 81920)
    second.label_gpu("Tesla-T4", 1, 15360)
    two = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    t4 = {"nodeSelector": {"nvidia.com/gpu.product": "Tesla-T4"}}
    cluster.apply(
        pod(namespace, "two", cluster.pause_image, container=two),
        pod(namespace, "two-t4", cluster.pause_image, container=two, **t4),
    )
    cluster.wait_for_pod(namespace, "two", "Running")
    where = ["get", "pod", "--namespace", namespace, "--output", "jsonpath={.spec.nodeName}"]
    assert cluster.kubectl(*where, "two") == first.name
    time.sleep(1)
    assert cluster.kubectl(*where, "two-t4") == ""


def test_gpus_are_still_offered_after_a_restart_of_the_kubelet(cluster, namespace):
    node = cluster.nodes[0]
    node.label_gpu("NVIDIA-A100-SXM4-80GB", 2, 81920)
    node.stop_kubelet()
    node.start_kubelet()
    cluster.wait_until_ready(node.name, NOT_READY_SECONDS)
    one = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    cluster.apply(pod(namespace, "one", cluster.pause_image, node=node.name, container=one))
    cluster.wait_for_pod(namespace, "one", "Running")
