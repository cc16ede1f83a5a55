"""Clusters stand side by side and leave nothing behind, be they closed or their owner killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from cluster import cgroups, slots
from cluster.addresses import Addresses
from cluster.guardian import FOLDER
from cluster.local import Cluster
from cluster.pods import pod

OWNER = """
import sys, time
from cluster.local import Cluster
from cluster.pods import pod
cluster = Cluster.start(nodes=1, name=sys.argv[1])
cluster.create_namespace("left")
cluster.apply(pod("left", "running", cluster.pause_image))
cluster.wait_for_pod("left", "running", "Running")
print(cluster.kubeconfig.parent, cluster.guardian_pid, flush=True)
time.sleep(600)
"""
GONE_SECONDS = 60

pytestmark = pytest.mark.usefixtures("machine")


def traces(slot):
    """Everything of the cluster in `slot` that this machine shows: empty when it is gone."""
    addresses, state = Addresses(slot), slots.state_folder(slot)
    found = [f"folder {state}"] if state.exists() else []
    found += [f"process {process}" for process in sorted(cgroups.processes(addresses.cgroup))]
    found += [
        f"cgroup {mount}"
        for mount in set(cgroups.hierarchies().values())
        if (mount / addresses.cgroup).exists()
    ]
    found += [f"link {link}" for link in psutil.net_if_addrs() if link == addresses.link]
    found += [f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if f"{state}" in line]
    routes = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
    found += [f"route {line}" for line in routes.splitlines() if str(addresses.network) in line]
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        named = " ".join(process.info["cmdline"] or [])
        if process.info["status"] != psutil.STATUS_ZOMBIE and f"{state}/" in named:
            found.append(f"process {process.info['pid']}: {named}")
    return found


def strays():
    """What is in the folders that nodes of Kubernetes use where they have the machine for themselves."""
    found = []
    for folder in ("/run/netns", "/var/lib/kubelet", "/var/lib/cni", "/run/containerd", "/var/log/pods"):
        if Path(folder).exists():
            found += [str(path) for path in Path(folder).rglob("*")]
    return found


def wait_until_gone(slot):
    deadline = time.monotonic() + GONE_SECONDS
    while (left := traces(slot)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []


@pytest.fixture
def owner():
    """A process of its own that starts a cluster; yields it with the cluster's slot and the guardian's id."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, "owned"],
        env={**os.environ, "PYTHONPATH": str(FOLDER)},
        stdout=subprocess.PIPE,
        text=True,
    )
    state, guardian = process.stdout.readline().split()
    slot = int(Path(state).name)
    assert traces(slot) != []
    yield process, slot, int(guardian)
    process.kill()
    process.wait()
    process.stdout.close()
    # Where the test has killed the guardian, nobody else does it.
    Cluster.remove_leftovers()
    wait_until_gone(slot)


def test_two_clusters_stand_side_by_side_and_leave_nothing_when_closed():
    before = strays()
    with Cluster.start(nodes=1, name="left") as left, Cluster.start(nodes=1, name="right") as right:
        for cluster in (left, right):
            cluster.create_namespace("same-name")
            cluster.apply(pod("same-name", f"in-{cluster.name}", cluster.pause_image))
        for cluster in (left, right):
            cluster.wait_for_pod("same-name", f"in-{cluster.name}", "Running")
            listed = cluster.kubectl("get", "pods", "--namespace", "same-name", "--output", "name").split()
            assert listed == [f"pod/in-{cluster.name}"]
            assert cluster.ready_nodes() == [f"{cluster.name}-1"]
        used = [int(cluster.kubeconfig.parent.name) for cluster in (left, right)]
        assert [slot for slot in used if traces(slot)] == used
    assert [trace for slot in used for trace in traces(slot)] == []
    assert strays() == before


def test_the_cluster_of_a_killed_owner_is_removed_by_its_guardian(owner):
    process, slot, _ = owner
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until_gone(slot)


def test_the_cluster_of_an_owner_killed_with_its_guardian_is_removed_by_the_next_start(owner):
    process, slot, guardian = owner
    os.kill(guardian, signal.SIGKILL)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert traces(slot) != []
    assert slot in Cluster.remove_leftovers()
    assert traces(slot) == []


def test_a_cluster_whose_owner_lives_is_no_leftover(owner):
    _, slot, guardian = owner
    os.kill(guardian, signal.SIGKILL)
    assert slot not in Cluster.remove_leftovers()
    assert traces(slot) != []
