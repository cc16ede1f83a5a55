"""Two replicas of the operator as a Deployment runs them: one leads, and one that ends is started again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kubernetes import client
from operator_process import OperatorProcess, apply_manifests

NAMES = ("one", "two")
LEASE = "gradsieve-operator"
_NAMESPACE = "gradsieve-system"
_LOOK_SECONDS = 0.5


class Replicas:
    """The replicas, by their names; use `running_replicas`.

    Args:
        cluster: to work on.
        kubeconfig: by which they find the API server.
        folder: takes what they say, and their clocks.

    Attributes:
        restarts: how often one has ended, by itself or because it was killed.
    """

    def __init__(self, cluster: Any, kubeconfig: Path, folder: Path) -> None:
        self._cluster, self._kubeconfig, self._folder = cluster, kubeconfig, folder
        self._lock, self._over = threading.Lock(), threading.Event()
        self.restarts = 0
        self._gone: set[str] = set()
        self._processes = {
            name: OperatorProcess(cluster, folder / f"operator-{name}", clock=folder / f"clock-{name}")
            for name in NAMES
        }
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def start(self) -> None:
        """Start them, and keep them running."""
        for name in NAMES:
            self._start(name)
        self._keeper.start()

    def close(self) -> None:
        """End them for good."""
        self._over.set()
        self._keeper.join()
        for process in self._processes.values():
            process.close()

    def leader(self) -> str:
        """Return the name of the replica that holds the Lease, empty for none."""
        with suppress(client.ApiException):
            lease = client.CoordinationV1Api(self._cluster.api).read_namespaced_lease(LEASE, _NAMESPACE)
            return str(lease.spec.holder_identity or "")
        return ""

    def wait_for_leader(self, seconds: float, other_than: str = "") -> str:
        """Return the name of the replica that leads, once one does that is not ``other_than``."""
        self._cluster.retry(lambda: self.leader() not in ("", other_than), seconds)
        return self.leader()

    def kill(self, name: str) -> None:
        """Kill one, which is then started again."""
        with self._lock:
            self._processes[name].signal(signal.SIGKILL)

    @contextmanager
    def without(self, name: str) -> Iterator[None]:
        """Kill one, and do not start it again meanwhile, as if its node had gone."""
        with self._lock:
            self._gone.add(name)
            self._processes[name].signal(signal.SIGKILL)
        try:
            yield
        finally:
            self._gone.discard(name)

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Keep one from doing anything: it goes on later as if no time had passed."""
        self._processes[name].signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._processes[name].signal(signal.SIGCONT)

    @contextmanager
    def clocks_off(self, seconds: float) -> Iterator[None]:
        """Let the clocks of all replicas be wrong by so much."""
        for process in self._processes.values():
            process.set_clock(seconds)
        try:
            yield
        finally:
            for process in self._processes.values():
                process.set_clock(0.0)

    def _start(self, name: str) -> None:
        self._processes[name].start(
            self._kubeconfig, GRADSIEVE_OPERATOR_NAMESPACE=_NAMESPACE, GRADSIEVE_OPERATOR_POD=name
        )

    def _keep(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            with self._lock:
                for name, process in self._processes.items():
                    if process.ended() and name not in self._gone:
                        self.restarts += 1
                        self._start(name)


@contextmanager
def running_replicas(cluster: Any, kubeconfig: Path, folder: Path) -> Iterator[Replicas]:
    """Apply CRDs and rights, and run two replicas with no more than these."""
    apply_manifests(cluster)
    replicas = Replicas(cluster, kubeconfig, folder)
    replicas.start()
    try:
        replicas.wait_for_leader(60)
        yield replicas
    finally:
        replicas.close()
