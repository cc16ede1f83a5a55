"""One real node: containerd, kubelet and kube-proxy in a sandbox, and what tests may do to it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import cgroups, wiring
from cluster.addresses import Addresses
from cluster.binaries import program
from cluster.certificates import KeyPair
from cluster.control_plane import ControlPlane
from cluster.gpus import Gpus
from cluster.node_files import NodeFiles
from cluster.python import mounted_folders
from cluster.sandbox import Sandbox
from cluster.template import Template
from cluster.waiting import wait_for

_RUNTIME_SECONDS = 60
_IMPORT_SECONDS = 300


class Node:
    """Node `index` (from 1) of a cluster; `name` is its name in the API."""

    def __init__(
        self,
        name: str,
        index: int,
        *,
        addresses: Addresses,
        state: Path,
        control_plane: ControlPlane,
        hub: Sandbox,
        template: Template,
    ) -> None:
        self.name = name
        self.address = str(addresses.node(index))
        self._index = index
        self._hub = hub
        self._control_plane = control_plane
        self._files = NodeFiles(state, index, addresses)
        self._files.folder.mkdir()
        self._logs = self._files.folder / "logs"
        self._logs.mkdir()
        self._gpus: Gpus | None = None
        cgroups.create(self._files.cgroup)
        self.sandbox = Sandbox(
            f"{addresses.cgroup}/daemons",
            self._logs,
            mounts=self._files.mounts(template, mounted_folders()),
        )

    def start_runtime(self, plugins: Path) -> None:
        """Start containerd and return when it answers; needs no control plane."""
        authority = self._control_plane.authority
        self._identity: KeyPair = authority.issue(
            f"n{self._index}", f"system:node:{self.name}", "system:nodes", [self.name, self.address]
        )
        self._files.write(plugins, authority.ca, self._identity)
        self.sandbox.start("containerd", "containerd", "--config", self._files.folder / "containerd.toml")
        wait_for(f"containerd of {self.name}", self._runtime_answers, _RUNTIME_SECONDS, self.sandbox.ended)

    def load_image(self, archive: Path) -> None:
        """Import an OCI archive into the node's containerd; a few seconds for a big one."""
        self.sandbox.run(
            *self._ctr("--namespace", "k8s.io", "images", "import", str(archive)), timeout=_IMPORT_SECONDS
        )

    def start_agents(self) -> None:
        """Start kubelet and kube-proxy, which register the node and serve its Services."""
        self.start_kubelet()
        authority, server = self._control_plane.authority, self._control_plane.server
        proxy = authority.issue(f"proxy{self._index}", "system:kube-proxy")
        self.sandbox.start(
            "kube-proxy",
            program("kube-proxy"),
            f"--kubeconfig={authority.kubeconfig(f'proxy{self._index}', server, proxy)}",
            f"--hostname-override={self.name}",
            "--proxy-mode=nftables",
            # The kernel's limits on connections are the machine's and not the node's to change.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        )

    def start_kubelet(self) -> None:
        """Start the kubelet (again)."""
        authority, server = self._control_plane.authority, self._control_plane.server
        config = authority.kubeconfig(f"n{self._index}", server, self._identity)
        self.sandbox.start(
            "kubelet",
            program("kubelet"),
            f"--config={self._files.folder / 'kubelet.json'}",
            f"--kubeconfig={config}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            f"--root-dir={self._files.data / 'kubelet'}",
        )
        if self._gpus is not None:
            # A kubelet that starts takes back resources that no device plug-in vouches for.
            self._gpus.announce()

    def stop_kubelet(self) -> None:
        """End the kubelet; its pods go on, and the node becomes NotReady after the control plane's grace."""
        self.sandbox.stop("kubelet")

    @contextmanager
    def held_kubelet(self) -> Iterator[None]:
        """Keep the kubelet from doing anything: its node stays Ready within the control plane's grace."""
        kubelet = self.sandbox.children["kubelet"]
        kubelet.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            kubelet.send_signal(signal.SIGCONT)

    def shape_link(self, rate: str | None) -> None:
        """Limit the bandwidth of the node's link in either direction, such as to "100mbit"; None lifts it."""
        wiring.shape(self._hub, self.sandbox, self._index, rate)

    def throttle_cpu(self, cores: float | None) -> None:
        """Let all pods of the node together use no more than `cores` processors' time; None lifts it."""
        cgroups.limit_cpu(self._files.cgroup, cores)

    def seconds_throttled(self) -> float:
        """Return for how long, since its start, the limit of `throttle_cpu` has held its pods back."""
        return cgroups.seconds_throttled(self._files.cgroup)

    def limit_containers(self, uid: str, cores: float | None) -> None:
        """Let each container of one of its pods use no more than `cores`, as the kubelet does for limits.cpu.

        This kubelet sets none itself: with limits of their own below it, version 1 of cgroups would refuse to
        throttle the whole node.
        """
        cgroups.limit_containers(self._files.cgroup, uid, cores)

    def cut_off(self) -> None:
        """Sever the node's link: its pods go on running, and nothing gets in or out."""
        wiring.switch(self._hub, self._index, on=False)

    def reconnect(self) -> None:
        """Restore the node's link."""
        wiring.switch(self._hub, self._index, on=True)

    def label_gpu(self, product: str, count: int, memory: int) -> None:
        """Let the node offer `count` GPUs `product` of `memory` MiB, as GPU feature discovery and device
        plug-in would.

        Containers get no device: what asks for a GPU is placed like on real ones and computes on the
        processor.
        """
        self._gpus = Gpus(self._control_plane.admin, self.name, product, count, memory)
        self._gpus.announce()

    def withdraw_gpus(self) -> None:
        """Offer no GPUs any more."""
        if self._gpus is not None:
            self._gpus.withdraw()
        self._gpus = None

    def _ctr(self, *arguments: str) -> list[str]:
        return ["ctr", "--address", str(self._files.socket), *arguments]

    def _runtime_answers(self) -> bool:
        return "Server:" in self.sandbox.run(*self._ctr("version"), check=False)
