"""The configuration files of one node: containerd, CNI and kubelet."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.addresses import Addresses
from cluster.certificates import KeyPair
from cluster.template import PAUSE_IMAGE, Template


@dataclass(frozen=True)
class NodeFiles:
    """Where the node `index` keeps what it runs on, all below `state`.

    The folder is short because the path of a socket may have no more than 107 characters.
    """

    state: Path
    index: int
    addresses: Addresses

    @property
    def folder(self) -> Path:
        """The node's own folder."""
        return self.state / f"n{self.index}"

    @property
    def socket(self) -> Path:
        """Where containerd listens."""
        return self.folder / "containerd.sock"

    @property
    def cgroup(self) -> str:
        """The cgroup of all pods of the node."""
        return f"{self.addresses.cgroup}/n{self.index}"

    def write(self, plugins: Path, ca: Path, serving: KeyPair) -> None:
        """Write all of them, for CNI plug-ins in `plugins` and a kubelet that serves as `serving`."""
        (self.folder / "cni").mkdir(parents=True)
        (self.folder / "containerd.toml").write_text(self._containerd(plugins))
        (self.folder / "cni" / "10-bridge.conflist").write_text(json.dumps(self._network()))
        (self.folder / "kubelet.json").write_text(json.dumps(self._kubelet(ca, serving)))
        # Of its own, because the machine's may name a resolver that only the machine reaches.
        (self.folder / "resolv.conf").write_text(f"nameserver {self.addresses.api}\n")

    @property
    def data(self) -> Path:
        """A folder in memory, seen by the node alone, for all that need not outlive it.

        It goes with the node's mount namespace: deleting thousands of files from a disk takes longer than a
        boot.
        """
        return self.folder / "data"

    def mounts(self, template: Template, folders: dict[str, Path]) -> list[str]:
        """Return the commands that give the node a private view of the folders that all nodes would share.

        1. `folders` are bound read-only by name, before anything can hide them, for pods to mount.
        2. The store of images is the template's: its layers are shared, its small databases copied.
        3. kubelet, containerd and CNI have fixed paths below /run, /var/lib and /var/log.
        """
        python = self.data / "python"
        return [
            f"mkdir {self.data}",
            f"mount -t tmpfs -o mode=755 tmpfs {self.data}",
            *(f"mkdir -p {python / name}" for name in folders),
            *(f"mount -o bind,ro {shlex.quote(str(it))} {python / name}" for name, it in folders.items()),
            *template.mounts(self.data / "containerd"),
            *(f"mount -t tmpfs -o mode=755 tmpfs {folder}" for folder in ("/run", "/var/lib", "/var/log")),
            f"mkdir {PYTHON_FOLDER}",
            f"mount --rbind {python} {PYTHON_FOLDER}",
        ]

    def _containerd(self, plugins: Path) -> str:
        return f"""
version = 2
root = "{self.data}/containerd"
state = "{self.data}/run"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "{self.socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{self.folder}/cni"
"""

    def _network(self) -> dict[str, Any]:
        addresses = {
            "type": "host-local",
            "ranges": [[{"subnet": str(self.addresses.pods(self.index))}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(self.data / "addresses"),
        }
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": False,
            "hairpinMode": True,
            "ipam": addresses,
        }
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}

    def _kubelet(self, ca: Path, serving: KeyPair) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "enforceNodeAllocatable": ["pods"],
            # With quotas of its own per pod, version 1 of cgroups would refuse to throttle the whole node.
            "cpuCFSQuota": False,
            "oomScoreAdj": 0,  # less takes a capability that a container on a CI machine may not have
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(ca)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(serving.certificate),
            "tlsPrivateKeyFile": str(serving.key),
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "resolvConf": str(self.folder / "resolv.conf"),
            "clusterDNS": [str(self.addresses.api)],
            "clusterDomain": "cluster.local",
            "podLogsDir": str(self.data / "pod-logs"),
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 8,
            "serializeImagePulls": False,
            "kubeAPIQPS": 200,
            "kubeAPIBurst": 400,
            # The machine's disk may be fuller than kubelet likes, and images cannot be pulled again.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
            },
        }


PYTHON_FOLDER = Path("/run/python")
