"""Two replicas of the operator in the control plane's sandbox, with the rights that manifests give them."""

from __future__ import annotations

import json
import sys
import threading
from contextlib import suppress
from pathlib import Path

import psutil
from cluster.simulated import SimulatedCluster
from cluster.waiting import wait_for

NAMESPACE = "gradsieve-system"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:gradsieve-operator"
_MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
_LEADER_SECONDS = 60.0
_PAUSE = 0.5
_MEBI = 1 << 20


class Operators:
    """The replicas by name.

    Args:
        cluster: that they work on.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        for manifest in ("crds", "namespace.yaml", "rbac.yaml"):
            cluster.kubectl("apply", "-f", str(_MANIFESTS / manifest))
        self._kubeconfig = _kubeconfig(cluster)
        cluster.retry(lambda: bool(cluster.kubectl("get", "hvj", "-A", "-o", "name") or True))

    def start(self, name: str) -> None:
        """Start a replica; returns at once."""
        self._cluster.hub.start(
            name,
            *(sys.executable, "-m", "kopf", "run", "--standalone", "--all-namespaces"),
            "--module=gradsieve_operator",
            environment={
                "KUBECONFIG": str(self._kubeconfig),
                "GRADSIEVE_OPERATOR_NAMESPACE": NAMESPACE,
                "GRADSIEVE_OPERATOR_POD": name,
            },
        )

    def kill(self, name: str) -> None:
        """End a replica as a crash would."""
        process = self._cluster.hub.children.pop(name)
        process.kill()
        process.wait()

    def lease(self) -> dict[str, str]:
        """Return the spec of the Lease, empty while there is none."""
        found = self._cluster.kubectl(
            *("get", "lease", "gradsieve-operator", "--namespace", NAMESPACE),
            *("--ignore-not-found", "-o", "json"),
        )
        return json.loads(found)["spec"] if found else {}

    def leader(self) -> str:
        """Return the name of the replica that leads, once one does."""
        return wait_for("a leader", lambda: self.lease().get("holderIdentity"), _LEADER_SECONDS)

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Return the processes of each replica, those that it has started among them."""
        found = {}
        for name, child in list(self._cluster.hub.children.items()):
            if name.startswith("operator-"):
                with suppress(psutil.NoSuchProcess):
                    process = psutil.Process(child.pid)
                    found[name] = [process, *process.children(recursive=True)]
        return found


def _kubeconfig(cluster: SimulatedCluster) -> Path:
    """Write a kubeconfig with a token, as pods have one: certificates are verified with each request."""
    account = ACCOUNT.rpartition(":")[2]
    token = cluster.kubectl("create", "token", account, "--namespace", NAMESPACE, "--duration=24h")
    content = json.loads(cluster.control_plane.admin.read_text())
    content["users"][0]["user"] = {"token": token.strip()}
    path = cluster.state / "operator.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(json.dumps(content))
    return path


class Memory:
    """Watches, in a thread, what all operators hold together; stop it in the end.

    Attributes:
        peak: MiB of all replicas at their highest together; of a page that several share each has its part.
        peaks: of each replica by itself.
    """

    def __init__(self, operators: Operators) -> None:
        self._operators = operators
        self.peak = 0.0
        self.peaks: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no longer."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_PAUSE):
            now = {name: sum(map(_held, parts)) for name, parts in self._operators.processes().items()}
            self.peak = max(self.peak, sum(now.values()))
            for name, held in now.items():
                self.peaks[name] = max(self.peaks.get(name, 0.0), held)


def _held(process: psutil.Process) -> float:
    """Return the proportional set size of a process, in MiB; 0 when it has gone."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / _MEBI
