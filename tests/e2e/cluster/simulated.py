"""A real control plane whose nodes exist in the API only: kwok plays thousands of pods, which run nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, Self

from cluster import cgroups, prerequisites, slots, wiring
from cluster.access import Access
from cluster.binaries import program
from cluster.control_plane import ControlPlane
from cluster.errors import ClusterError
from cluster.guardian import start_guardian
from cluster.local import LOGS_VARIABLE, save_logs
from cluster.sandbox import Sandbox
from cluster.slots import Slot

PODS = IPv4Network("100.64.0.0/16")
"""Addresses of all pods. Within the hub they are its own: what listens there answers for every pod."""

_STAGES = Path(__file__).with_name("stages.yaml")


class SimulatedCluster(Access):
    """A control plane and kwok; use :meth:`start`. Nodes are made by whoever uses it, as objects.

    Attributes:
        hub: the sandbox of the control plane; what is started in it reaches pods' addresses.
        control_plane: with its audit log.
        state: a folder that goes with the cluster.
    """

    def __init__(self, slot: Slot, audit: Sequence[dict[str, Any]], *, oldest: bool) -> None:
        self._slot = slot
        self._guardian: subprocess.Popen = start_guardian(slot)
        self.state = slot.state
        logs, data = slot.state / "logs", slot.state / "etcd"
        daemons = f"{slot.addresses.cgroup}/daemons"
        cgroups.create(daemons)
        for folder in (logs, data):
            folder.mkdir()
        self.hub = Sandbox(daemons, logs, mounts=[f"mount -t tmpfs tmpfs {data}"])
        self.control_plane = ControlPlane(slot.state, slot.addresses, self.hub, audit, oldest=oldest)

    @classmethod
    def start(cls, audit: Sequence[dict[str, Any]] = (), *, oldest: bool = False) -> Self:
        """Start a cluster without nodes.

        Args:
            audit: rules of an audit policy; without any there is no audit log.
            oldest: with API server and scheduler of the oldest supported Kubernetes, and no controllers.

        Raises:
            ClusterUnavailable: this machine lacks something that a cluster needs.
            ClusterError: something did not start.
        """
        prerequisites.require()
        for compiled in ("etcd", "kubectl", "kwok"):
            program(compiled)
        program("kube-apiserver", oldest=oldest)
        cluster = cls(slots.acquire(), audit, oldest=oldest)
        try:
            cluster._boot()
            if not oldest:
                cluster.wait_for_service_account("default")
        except BaseException:
            cluster.close()
            raise
        return cluster

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End and remove everything; logs go to the folder that `GRADSIEVE_E2E_LOGS` names, if it does."""
        self.disconnect()
        if folder := os.environ.get(LOGS_VARIABLE):
            save_logs(self.state, Path(folder) / f"simulated-{self._slot.number}")
        slots.remove(self._slot.number)
        self.hub.reap()
        self._guardian.terminate()
        self._guardian.wait()
        self._slot.release()

    def kubeconfig_of(self, user: str) -> Path:
        """Write a kubeconfig of a user who may do what roles bound to that name allow; return its file."""
        return self.control_plane.kubeconfig_of(user)

    def require_all(self) -> None:
        """Raise if a process of the control plane has ended.

        Raises:
            ClusterError: one has.
        """
        if ended := self.hub.ended():
            raise ClusterError(f"ended early, with status: {ended}")

    def _boot(self) -> None:
        wiring.connect_hub(self._slot.addresses, self.hub)
        self.hub.run("ip", "route", "add", "local", str(PODS), "dev", "lo")
        self.control_plane.start(nodes=False)
        self.hub.start(
            "kwok",
            program("kwok"),
            f"--kubeconfig={self.control_plane.admin}",
            f"--config={_STAGES}",
            f"--cidr={PODS}",
            "--manage-all-nodes",
            "--v=WARN",
        )
        self.connect(self.control_plane.admin, program("kubectl"))
