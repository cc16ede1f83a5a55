"""Clusters stand side by side and leave nothing behind, be they closed or their owner killed."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from cluster import cgroups, slots
from cluster.addresses import SLOTS, Addresses
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


def namespaces(slot):
    """The network and mount namespaces of the cluster's processes that are not this process's own."""
    own = links("self")
    return {link for process in cgroups.processes(Addresses(slot).cgroup) for link in links(process)} - own


def links(process):
    """The network and mount namespaces that a process is in, as `net:[4026531840]`."""
    with suppress(OSError):
        return {str(Path(f"/proc/{process}/ns/{kind}").readlink()) for kind in ("net", "mnt")}
    return set()


def holders(held, used):
    """Who keeps any of these namespaces alive: processes in them or with a handle, and mounts of them.

    Not processes of clusters in other slots than those ``used``: the kernel gives the number of a namespace
    that is gone to the next one that is made, as by the containers of tests in another process.
    """
    found = [f"mount of {link}" for link in held if link in Path("/proc/self/mountinfo").read_text()]
    processes = set(psutil.pids())
    others = {slot for slot in range(SLOTS) if slot not in used}
    elsewhere = {process for slot in others for process in cgroups.processes(Addresses(slot).cgroup)}
    for process in processes - elsewhere:
        found += [f"process {process} in {link}" for link in links(process) & held]
        with suppress(OSError):
            for handle in Path(f"/proc/{process}/fd").iterdir():
                with suppress(OSError):
                    if (link := str(handle.readlink())) in held:
                        found.append(f"process {process} with a handle of {link}")
    return found


def strays():
    """What is in the folders that nodes of Kubernetes use where they have the machine for themselves."""
    found = []
    for folder in ("/run/netns", "/var/lib/kubelet", "/var/lib/cni", "/run/containerd", "/var/log/pods"):
        if Path(folder).exists():
            found += [str(path) for path in Path(folder).rglob("*")]
    return found


def wait_until_gone(slot, held):
    deadline = time.monotonic() + GONE_SECONDS
    while (left := traces(slot) + holders(held, [slot])) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []


@pytest.fixture
def owner():
    """A process of its own that starts a cluster; yields it with that one's slot, guardian and namespaces."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, "owned"],
        env={**os.environ, "PYTHONPATH": str(FOLDER)},
        stdout=subprocess.PIPE,
        text=True,
    )
    state, guardian = process.stdout.readline().split()
    slot = int(Path(state).name)
    assert traces(slot) != []
    held = namespaces(slot)
    # A network and a mount namespace of the node, and those of its pods.
    assert {link.partition(":")[0] for link in held} == {"net", "mnt"}
    assert holders(held, [slot]) != []
    yield process, slot, int(guardian), held
    process.kill()
    process.wait()
    process.stdout.close()
    # Where the test has killed the guardian, nobody else does it.
    Cluster.remove_leftovers()
    wait_until_gone(slot, held)


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
        held = {link for slot in used for link in namespaces(slot)}
        assert holders(held, used) != []
    assert [trace for slot in used for trace in traces(slot)] == []
    assert holders(held, used) == []
    assert strays() == before


def test_the_cluster_of_a_killed_owner_is_removed_by_its_guardian(owner):
    process, slot, _, held = owner
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until_gone(slot, held)


def test_the_cluster_of_an_owner_killed_with_its_guardian_is_removed_by_the_next_start(owner):
    process, slot, guardian, held = owner
    os.kill(guardian, signal.SIGKILL)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert traces(slot) != []
    assert slot in Cluster.remove_leftovers()
    assert traces(slot) + holders(held, [slot]) == []


def test_a_cluster_whose_owner_lives_is_no_leftover(owner):
    _, slot, guardian, _ = owner
    os.kill(guardian, signal.SIGKILL)
    assert slot not in Cluster.remove_leftovers()
    assert traces(slot) != []
