"""Nodes that exist in the API only, played by kwok beside real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

STAGES = Path(__file__).with_name("stages.yaml")
LABEL = "e2e.gradsieve.io/simulated"
MARK = "kwok.x-k8s.io/node"
PODS = "127.88.0.0/16"
"""Addresses of their pods: on this machine, where nobody listens, so that whoever calls one is refused."""

_AMOUNTS = {"cpu": "32", "memory": "256Gi", "pods": "110"}

SELECTED: dict[str, Any] = {
    "nodeSelector": {LABEL: "true"},
    "tolerations": [{"key": LABEL, "operator": "Exists"}],
}
"""What a pod's spec says to get there."""


def node(name: str) -> dict[str, Any]:
    """Return a node that kwok makes Ready; nothing gets there that does not ask for it."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {MARK: "fake"},
            "labels": {LABEL: "true", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        "spec": {"taints": [{"key": LABEL, "effect": "NoSchedule"}]},
        "status": {"allocatable": _AMOUNTS, "capacity": _AMOUNTS},
    }
