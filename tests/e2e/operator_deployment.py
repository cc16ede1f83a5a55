"""The operator as users install it: the manifests as they are, only the image's name changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from cluster.errors import ClusterError
from cluster.external import skip

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
NAMESPACE = "gradsieve-system"
_DEPLOYMENT = "deployment/gradsieve-operator"
_INSTALL_SECONDS = 180


class OperatorDeployment:
    """Two replicas in the cluster.

    Args:
        cluster: to install it on.
    """

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster

    def install(self) -> None:
        """Do what docs/kubernetes.md says under *Install*; return when both replicas are ready.

        Raises:
            ClusterError: they are not in time.
        """
        self._cluster.kubectl("apply", "-f", str(MANIFESTS / "crds"))
        for name in ("namespace.yaml", "rbac.yaml"):
            self._cluster.kubectl("apply", "-f", str(MANIFESTS / name))
        self._cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(self._operator()))
        wait = ("rollout", "status", _DEPLOYMENT, f"--timeout={_INSTALL_SECONDS}s")
        try:
            self._kubectl(*wait, timeout=_INSTALL_SECONDS + 10)
        except Exception as late:
            late.add_note(self._kubectl("describe", "pods", check=False)[-4000:])
            late.add_note(self.said())
            raise

    def require_none(self) -> None:
        """Raise if there is one already, which is not the tests' to replace.

        Raises:
            ClusterError: there is.
        """
        if self._kubectl("get", _DEPLOYMENT, "--ignore-not-found", "-o", "name"):
            raise ClusterError(f"the cluster has an operator already: remove {_DEPLOYMENT} in {NAMESPACE}")

    def remove(self) -> None:
        """Delete the Deployment and wait until its pods have gone; the CRDs stay."""
        self._kubectl("delete", _DEPLOYMENT, "--cascade=foreground", "--timeout=90s", timeout=100)

    def leader(self) -> str:
        """Return the name of the pod that holds the Lease; empty while none does."""
        lease = json.loads(self._kubectl("get", "lease", "gradsieve-operator", "-o", "json"))
        return lease["spec"].get("holderIdentity") or ""

    def kill(self, pod: str) -> None:
        """Delete one of its pods without a grace period: it has no time to give the Lease back."""
        self._kubectl("delete", "pod", pod, "--grace-period=0", "--force")

    def pods(self) -> dict[str, dict[str, Any]]:
        """Return its pods by name."""
        found = json.loads(self._kubectl("get", "pods", "-o", "json"))
        return {item["metadata"]["name"]: item for item in found["items"]}

    def said(self) -> str:
        """Return the ends of its logs."""
        return self._kubectl("logs", _DEPLOYMENT, "--all-pods", "--prefix", "--tail=60", check=False)

    def _operator(self) -> list[dict[str, Any]]:
        objects = list(yaml.safe_load_all((MANIFESTS / "operator.yaml").read_text()))
        for each in objects:
            if each["kind"] == "Deployment":
                each["spec"]["template"]["spec"]["containers"][0]["image"] = self._cluster.operator_image
        return objects

    def _kubectl(self, *arguments: str, check: bool = True, timeout: float = 60) -> str:
        return self._cluster.kubectl("--namespace", NAMESPACE, *arguments, check=check, timeout=timeout)


@contextmanager
def deployed_operator(cluster: Any) -> Iterator[OperatorDeployment]:
    """Install the operator, and remove it at the end."""
    deployment = OperatorDeployment(cluster)
    deployment.require_none()
    try:
        deployment.install()
        yield deployment
    finally:
        deployment.remove()


class DeployedFromOutside:
    """The deployed operator on somebody else's cluster: it works, and no test may stop it.

    Attributes:
        deployment: what was installed.
    """

    def __init__(self, deployment: OperatorDeployment) -> None:
        self.deployment = deployment

    def kill(self) -> None:
        """Skip the test."""
        skip("an operator to be killed at will")

    def start(self) -> None:
        """Do nothing: it was never killed."""
