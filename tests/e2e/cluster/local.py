"""A real Kubernetes on this machine: `with Cluster.start(nodes=3) as cluster: ...`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from cluster import cgroups, images, prerequisites, simulated_nodes, slots, wiring
from cluster.access import Access
from cluster.addresses import MOST_NODES
from cluster.binaries import program
from cluster.control_plane import NICE, ControlPlane
from cluster.enforcement import Enforcement
from cluster.errors import ClusterError
from cluster.guardian import start_guardian
from cluster.node import Node
from cluster.operator_image import OPERATOR, operator_archive
from cluster.python import PythonVolume, claim_manifests, python_volume
from cluster.rest import Rest
from cluster.sandbox import Sandbox
from cluster.slots import Slot
from cluster.template import Template
from cluster.waiting import wait_for
from kubernetes import client

_NODES_SECONDS = 120
# Compiled before the clock runs; Helm and kwok wait until they are asked for.
_PROGRAMS = ["etcd", "kubelet", "coredns"]
LOGS_VARIABLE = "GRADSIEVE_E2E_LOGS"

# A kubelet may see a pod before the node authorizer has noted what the pod mounts. Refused a claim, it tries
# again only after 10 s or more; on a busy machine that was seen in one of about ten jobs.
_NODES_MAY_READ_VOLUMES = (
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "nodes-read-volumes"},
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["persistentvolumeclaims", "persistentvolumes"],
                "verbs": ["get"],
            }
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "nodes-read-volumes"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "nodes-read-volumes",
        },
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"},
        ],
    },
)


class Cluster(Access):
    """A control plane and real nodes, each in namespaces of its own; use :meth:`start`.

    Attributes:
        nodes: the nodes, in the order of their indices.
        boot_seconds: how long it took to start, without compiling.
    """

    def __init__(self, slot: Slot, name: str) -> None:
        self.name = name
        self._slot = slot
        self._guardian: subprocess.Popen = start_guardian(slot)
        self._sandboxes: list[Sandbox] = []
        self._loaded: set[Path] = set()
        self._closed = False
        self.nodes: list[Node] = []
        self.boot_seconds = 0.0

    @classmethod
    def start(cls, nodes: int = 3, name: str = "e2e", audit: Sequence[dict[str, Any]] = ()) -> Self:
        """Start a cluster whose nodes are called `name`-1, `name`-2, …, and return when all are Ready.

        Args:
            nodes: how many.
            name: of the cluster.
            audit: rules of an audit policy; without any there is no audit log.

        Raises:
            ClusterUnavailable: this machine lacks something that a cluster needs.
            ClusterError: something did not start; the message quotes the ends of the logs.
        """
        prerequisites.require()
        if not 1 <= nodes <= MOST_NODES:
            raise ClusterError(f"{nodes} nodes: a cluster has 1 to {MOST_NODES}")
        for compiled in _PROGRAMS:
            program(compiled)
        template = images.template()
        cluster = cls(slots.acquire(), name)
        try:
            cluster._boot(nodes, template, audit)
        except BaseException as failure:
            if isinstance(failure, ClusterError):
                failure.add_note(cluster.log_ends())
            cluster.close()
            raise
        return cluster

    @staticmethod
    def remove_leftovers() -> list[int]:
        """Remove clusters whose owners died together with their guardians; every start does so first."""
        return slots.remove_leftovers()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End and remove everything; logs go to the folder that `GRADSIEVE_E2E_LOGS` names, if it does."""
        if self._closed:
            return
        self._closed = True
        self.disconnect()
        if folder := os.environ.get(LOGS_VARIABLE):
            save_logs(self._slot.state, Path(folder) / f"{self.name}-{self._slot.number}")
        slots.remove(self._slot.number)
        for sandbox in self._sandboxes:
            sandbox.reap()
        self._guardian.terminate()
        self._guardian.wait()
        self._slot.release()

    @property
    def training_image(self) -> str:
        """A small Debian with Python, on all nodes: the base of pods that mount the project's environment."""
        return images.BASE

    @property
    def operator_image(self) -> str:
        """The operator's image, built from its Dockerfile, on all nodes."""
        return self.load_image(operator_archive(images.base_archive(), images.BASE), OPERATOR)

    @property
    def pause_image(self) -> str:
        """An image of a few hundred kilobytes that does nothing, on all nodes from the start."""
        return images.PAUSE

    @property
    def audit_log(self) -> Path:
        """A line of JSON for each request that the rules of `audit` name."""
        return self._control_plane.audit_log

    def kubeconfig_of(self, user: str) -> Path:
        """Write a kubeconfig of a user who may do what roles bound to that name allow; return its file."""
        return self._control_plane.kubeconfig_of(user)

    @property
    def guardian_pid(self) -> int:
        """The process that removes the cluster when this one dies."""
        return self._guardian.pid

    def load_image(self, archive: Path, name: str) -> str:
        """Import an OCI archive that holds the image `name` into all nodes, once; return `name`."""
        if archive not in self._loaded:
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda node: node.load_image(archive), self.nodes))
            self._loaded.add(archive)
        return name

    def python_volume(self, namespace: str) -> PythonVolume:
        """Create the claim for the project's environment in `namespace`; return how pods use it."""
        for manifest in claim_manifests(namespace, f"python-{namespace}"):
            self.apply(manifest)
        return python_volume()

    def settle_policies(self, seconds: float = 30) -> None:
        """Return when every NetworkPolicy of this moment holds for every pod of this moment."""
        self._enforcement.settle(seconds)

    def simulate_nodes(self, names: Sequence[str]) -> None:
        """Add nodes that exist in the API only; what is bound to them runs nothing, and is said to run.

        Pods get there if they select `cluster.simulated_nodes.LABEL` and tolerate the taint of that name.
        """
        self._control_plane.simulate()
        for name in names:
            # Not applied, which would drop what it offers.
            client.CoreV1Api(self.api).create_node(simulated_nodes.node(name))
        wait_for("simulated nodes Ready", lambda: {*names} <= {*self.ready_nodes()}, _NODES_SECONDS)

    @contextmanager
    def no_binding(self) -> Iterator[None]:
        """Hold the scheduler: pods are made meanwhile, and none is bound by it."""
        with self._held("kube-scheduler"):
            yield

    @contextmanager
    def no_storage(self) -> Iterator[None]:
        """Hold etcd: the API server takes requests meanwhile and can answer few of them."""
        with self._held("etcd"):
            yield

    def restart_api_server(self) -> None:
        """Kill the API server, start it again, and return when it is ready."""
        self._control_plane.restart_api_server()

    def rest(self, accept: str = "application/json") -> Rest:
        """Return a plain reader of the API."""
        return self._control_plane.rest(accept)

    @contextmanager
    def _held(self, name: str) -> Iterator[None]:
        self._control_plane.signal(name, signal.SIGSTOP)
        try:
            yield
        finally:
            self._control_plane.signal(name, signal.SIGCONT)

    @contextmanager
    def pods_first(self) -> Iterator[None]:
        """Within, give pods more of the processors than other processes have: their steps are more even."""
        cgroups.weigh(self._slot.addresses.cgroup, 4)
        try:
            yield
        finally:
            cgroups.weigh(self._slot.addresses.cgroup, 1)

    def log_ends(self, lines: int = 15) -> str:
        """Return the last `lines` of every log, for the message of a failed start."""
        ends = []
        for log in sorted(self._slot.state.rglob("logs/*.log")):
            last = log.read_text(errors="replace").splitlines()[-lines:]
            ends.append("\n".join([f"--- {log.relative_to(self._slot.state)}", *last]))
        return "\n".join(ends)

    def _boot(self, nodes: int, template: Template, audit: Sequence[dict[str, Any]]) -> None:
        started = time.monotonic()
        addresses, state = self._slot.addresses, self._slot.state
        logs = state / "logs"
        logs.mkdir()
        daemons = f"{addresses.cgroup}/daemons"
        cgroups.create(daemons)
        # etcd keeps its data in memory.
        data = state / "etcd"
        data.mkdir()
        hub = Sandbox(daemons, logs, mounts=[f"mount -t tmpfs tmpfs {data}"], nice=NICE)
        self._sandboxes.append(hub)
        wiring.connect_hub(addresses, hub)
        control_plane = self._control_plane = ControlPlane(state, addresses, hub, audit)
        for index in range(1, nodes + 1):
            node = Node(
                f"{self.name}-{index}",
                index,
                addresses=addresses,
                state=state,
                control_plane=control_plane,
                hub=hub,
                template=template,
            )
            self.nodes.append(node)
            self._sandboxes.append(node.sandbox)
            wiring.connect_node(addresses, hub, node.sandbox, index, nodes)
        with ThreadPoolExecutor() as pool:
            starting = pool.submit(control_plane.start)
            list(pool.map(self._start_runtime, self.nodes))
            starting.result()
        for node in self.nodes:
            node.start_agents()
        self.connect(control_plane.admin, program("kubectl"))
        self._enforcement = Enforcement(state, hub, control_plane, self.nodes, str(addresses.api))
        wait_for("all nodes Ready", lambda: len(self.ready_nodes()) == nodes, _NODES_SECONDS, self._ended)
        self.apply(*_NODES_MAY_READ_VOLUMES)
        self.wait_for_service_account("default")
        self.boot_seconds = time.monotonic() - started

    def _start_runtime(self, node: Node) -> None:
        plugins = prerequisites.plugin_folder()
        assert plugins is not None
        node.start_runtime(plugins)

    def _ended(self) -> dict[str, int]:
        return {name: status for sandbox in self._sandboxes for name, status in sandbox.ended().items()}


def save_logs(state: Path, folder: Path) -> None:
    """Copy all logs of the cluster with the folder `state`, the audit log among them, to `folder`."""
    for log in [*state.rglob("logs/*.log"), *state.glob("audit.log")]:
        target = folder / log.relative_to(state)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, target)
