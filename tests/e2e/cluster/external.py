"""A cluster that somebody else runs: for scenarios that need no tricks with nodes.

The environment names it:

- `GRADSIEVE_E2E_KUBECONFIG`: who may create namespaces there;
- `GRADSIEVE_E2E_IMAGE`: the training image, with gradsieve installed, that its nodes can pull;
- `GRADSIEVE_E2E_OPERATOR_IMAGE`: likewise the operator's.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self

import pytest
from cluster.access import Access
from cluster.errors import ClusterUnavailable
from cluster.python import PythonVolume
from kubernetes import client

KUBECONFIG = "GRADSIEVE_E2E_KUBECONFIG"
TRAINING_IMAGE = "GRADSIEVE_E2E_IMAGE"
OPERATOR_IMAGE = "GRADSIEVE_E2E_OPERATOR_IMAGE"


def skip(trick: str) -> NoReturn:
    """Skip the test, which does something that only the harness's own cluster allows."""
    pytest.skip(f"{trick} needs the harness's own cluster: unset {KUBECONFIG}")


@dataclass(frozen=True)
class ExternalNode:
    """A node of such a cluster: it can be named, and everything else skips the test."""

    name: str

    def shape_link(self, rate: str | None) -> None:
        """Skip the test."""
        skip("shaping a node's link")

    def throttle_cpu(self, cores: float | None) -> None:
        """Skip the test."""
        skip("throttling a node")

    def seconds_throttled(self) -> float:
        """Skip the test."""
        skip("throttling a node")

    def stop_kubelet(self) -> None:
        """Skip the test."""
        skip("stopping a kubelet")

    def start_kubelet(self) -> None:
        """Skip the test."""
        skip("starting a kubelet")

    def cut_off(self) -> None:
        """Skip the test."""
        skip("cutting off a node")

    def reconnect(self) -> None:
        """Skip the test."""
        skip("reconnecting a node")

    def label_gpu(self, product: str, count: int, memory: int) -> None:
        """Skip the test."""
        skip("pretending that a node has GPUs")

    def withdraw_gpus(self) -> None:
        """Do nothing: its GPUs are its own."""


class ExternalCluster(Access):
    """The cluster that the environment names, with the interface of :class:`cluster.local.Cluster`."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        kubectl = shutil.which("kubectl")
        if kubectl is None:
            raise ClusterUnavailable(f"{KUBECONFIG} is set, and there is no kubectl on PATH")
        self._environ = environ
        self.connect(Path(environ[KUBECONFIG]), Path(kubectl))
        self.nodes = [
            ExternalNode(node.metadata.name) for node in client.CoreV1Api(self.api).list_node().items
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; namespaces are removed by the fixtures that made them."""
        self.disconnect()

    @property
    def training_image(self) -> str:
        """The image that `GRADSIEVE_E2E_IMAGE` names; without it the test is skipped."""
        return self._image(TRAINING_IMAGE)

    @property
    def operator_image(self) -> str:
        """The image that `GRADSIEVE_E2E_OPERATOR_IMAGE` names; without it the test is skipped."""
        return self._image(OPERATOR_IMAGE)

    @property
    def pause_image(self) -> str:
        """An image that only waits: the one that every Kubernetes has."""
        return "registry.k8s.io/pause:3.10"

    def load_image(self, archive: Path, name: str) -> str:
        """Skip the test: only the harness's own nodes take an archive."""
        skip(f"loading the image {name}")

    def python_volume(self, namespace: str) -> PythonVolume:
        """Return nothing to mount: the training image has the packages."""
        return PythonVolume()

    def settle_policies(self, seconds: float = 30) -> None:
        """Skip the test: when another network plug-in is through cannot be known."""
        skip("waiting for NetworkPolicies")

    def no_binding(self) -> NoReturn:
        """Skip the test."""
        skip("holding the scheduler")

    def _image(self, variable: str) -> str:
        if variable not in self._environ:
            pytest.skip(f"an image for the external cluster is needed: set {variable}")
        return self._environ[variable]
