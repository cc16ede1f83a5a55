"""GPUs that a node offers without having them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cluster.waiting import wait_for
from kubernetes import client, config

_COUNTED_SECONDS = 60
RESOURCE = "nvidia.com/gpu"


@dataclass(frozen=True)
class Gpus:
    """`count` GPUs `product` with `memory` MiB each on node `node` of the cluster that `kubeconfig` names."""

    kubeconfig: Path
    node: str
    product: str
    count: int
    memory: int

    def announce(self) -> None:
        """Label the node and add the GPUs to its capacity; return when the node offers them.

        The kubelet copies extended resources that it does not manage itself from capacity to allocatable, but
        one that is just starting sets them to zero first: so they are announced until they stay.
        """
        with config.new_client_from_config(str(self.kubeconfig)) as api:
            core = client.CoreV1Api(api)
            labels = {
                f"{RESOURCE}.product": self.product,
                f"{RESOURCE}.count": str(self.count),
                f"{RESOURCE}.memory": str(self.memory),
            }
            core.patch_node(self.node, {"metadata": {"labels": labels}})
            wait_for(f"GPUs of {self.node}", lambda: self._is_offered(core), _COUNTED_SECONDS)

    def withdraw(self) -> None:
        """Take labels and GPUs back."""
        with config.new_client_from_config(str(self.kubeconfig)) as api:
            core = client.CoreV1Api(api)
            labels = {f"{RESOURCE}.{name}": None for name in ("product", "count", "memory")}
            core.patch_node(self.node, {"metadata": {"labels": labels}})
            none = {RESOURCE: "0"}
            core.patch_node_status(self.node, {"status": {"capacity": none, "allocatable": none}})

    def _is_offered(self, core: client.CoreV1Api) -> bool:
        status = core.read_node(self.node).status
        if (status.capacity or {}).get(RESOURCE) != str(self.count):
            core.patch_node_status(self.node, {"status": {"capacity": {RESOURCE: str(self.count)}}})
            return False
        return (status.allocatable or {}).get(RESOURCE) == str(self.count)
