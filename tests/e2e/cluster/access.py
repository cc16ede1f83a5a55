"""What tests do with any cluster, be it the harness's own or one that they were given."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from cluster.commands import run
from cluster.errors import ClusterError
from cluster.waiting import wait_for
from kubernetes import client, config

_SERVICE_ACCOUNT_SECONDS = 60


class Access:
    """A cluster that `kubeconfig` reaches; `api` is a client of it."""

    kubeconfig: Path
    api: client.ApiClient

    def connect(self, kubeconfig: Path, kubectl: Path) -> None:
        """Use the cluster that `kubeconfig` names, and the program `kubectl`."""
        self.kubeconfig = kubeconfig
        self._kubectl = kubectl
        self.api = config.new_client_from_config(str(kubeconfig))

    def disconnect(self) -> None:
        """Close the client's connections."""
        if hasattr(self, "api"):
            self.api.close()

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True, timeout: float = 60
    ) -> str:
        """Run kubectl and return its standard output.

        Raises:
            ClusterError: it failed; the message holds what it said.
        """
        command = [str(self._kubectl), *arguments]
        return run(command, stdin=stdin, check=check, timeout=timeout, environment=self.environment())

    def start_kubectl(self, *arguments: str, stdout: IO[str]) -> subprocess.Popen[str]:
        """Start kubectl, which writes into `stdout` until it ends."""
        command = [str(self._kubectl), *arguments]
        return subprocess.Popen(command, stdout=stdout, env=self.environment(), text=True)

    def environment(self) -> dict[str, str]:
        """Return an environment in which shells find kubectl and the cluster."""
        path = f"{self._kubectl.parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": path}

    def apply(self, *manifests: dict[str, Any]) -> None:
        """Create or change the objects of `manifests`, by server-side apply."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(listed))

    def create_namespace(self, name: str) -> str:
        """Create a namespace that enforces *restricted* pod security, ready for pods; return its name."""
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
            }
        )
        self.wait_for_service_account(name)
        return name

    def wait_for_service_account(self, namespace: str) -> None:
        """Return when `namespace` has got its default service account, without which no pod is admitted."""
        core = client.CoreV1Api(self.api)

        def exists() -> bool:
            found = core.list_namespaced_service_account(namespace, field_selector="metadata.name=default")
            return bool(found.items)

        wait_for(f"service account of {namespace}", exists, _SERVICE_ACCOUNT_SECONDS)

    def delete_namespace(self, name: str) -> None:
        """Ask for the end of namespace `name`, without waiting, and of the volume made for it."""
        self.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
        self.kubectl("delete", "persistentvolume", f"python-{name}", "--wait=false", "--ignore-not-found")

    def wait_for_pod(self, namespace: str, name: str, phase: str, seconds: float = 60) -> None:
        """Return when pod `name` is in `phase`; "Running" also means that its containers are ready.

        Raises:
            ClusterError: it is not in time, or it has finished in another phase.
        """
        core = client.CoreV1Api(self.api)
        seen = "absent"

        def arrived() -> bool:
            nonlocal seen
            found = core.list_namespaced_pod(namespace, field_selector=f"metadata.name={name}").items
            status = found[0].status if found else None
            seen = "absent" if status is None else f"{status.phase}, {status.container_statuses}"
            if status is None or status.phase != phase:
                if status is not None and status.phase in {"Succeeded", "Failed"}:
                    raise ClusterError(f"pod {name} ended as {seen}")
                return False
            return phase != "Running" or all(it.ready for it in status.container_statuses or [])

        try:
            wait_for(f"pod {name} in phase {phase}", arrived, seconds)
        except ClusterError as late:
            late.add_note(f"last seen: {seen}")
            late.add_note(
                self.kubectl("describe", "pod", "--namespace", namespace, name, check=False)[-2000:]
            )
            raise

    def execute(self, namespace: str, pod: str, *command: str, timeout: float = 60) -> str:
        """Run `command` in a pod's first container and return its output."""
        return self.kubectl("exec", "--namespace", namespace, pod, "--", *command, timeout=timeout)

    def retry(self, attempt: Callable[[], bool], seconds: float = 30) -> None:
        """Call `attempt` until it returns true; what the cluster refuses meanwhile does not count.

        Raises:
            ClusterError: it did not in time; the message holds the last refusal.
        """
        refused: ClusterError | None = None

        def succeeded() -> bool:
            nonlocal refused
            try:
                return attempt()
            except ClusterError as failed:
                refused = failed
                return False

        try:
            wait_for("success", succeeded, seconds)
        except ClusterError as late:
            raise late from refused

    def wait_until_ready(self, node: str, seconds: float) -> None:
        """Return when `node` is Ready."""
        wait_for(f"{node} Ready", lambda: node in self.ready_nodes(), seconds)

    def wait_until_not_ready(self, node: str, seconds: float) -> None:
        """Return when `node` is not Ready."""
        wait_for(f"{node} not Ready", lambda: node not in self.ready_nodes(), seconds)

    def ready_nodes(self) -> list[str]:
        """Return the names of the nodes whose condition Ready is true."""
        return [
            node.metadata.name
            for node in client.CoreV1Api(self.api).list_node().items
            if any(it.type == "Ready" and it.status == "True" for it in node.status.conditions or [])
        ]
