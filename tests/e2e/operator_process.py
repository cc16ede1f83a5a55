"""The operator as a process of this machine, working on the test cluster, to be killed at will."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CRDS = ROOT / "manifests" / "crds"


class OperatorProcess:
    """`kopf run -m gradsieve_operator` for one cluster.

    Args:
        cluster: to work on.
        log: file that takes what it says.
    """

    def __init__(self, cluster: Any, log: Path) -> None:
        self._cluster, self._log = cluster, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns at once."""
        environment = {
            **os.environ,
            "KUBECONFIG": str(self._cluster.kubeconfig),
            "GRADSIEVE_OPERATOR_CIDRS": ",".join(self._own_addresses()),
        }
        command = [sys.executable, "-m", "kopf", "run", "-A", "--standalone", "-m", "gradsieve_operator"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def _own_addresses(self) -> set[str]:
        """Return from where this machine calls pods: the jobs' NetworkPolicies have to admit that."""
        where = "jsonpath={.items[*].status.addresses[?(@.type=='InternalIP')].address}"
        sources = set()
        for node in self._cluster.kubectl("get", "nodes", "-o", where).split():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((node, 9))
                sources.add(f"{probe.getsockname()[0]}/32")
        return sources

    def kill(self) -> None:
        """End it as a crash would, without a word."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def said(self) -> str:
        """Return its log."""
        return self._log.read_text()


@contextmanager
def running_operator(cluster: Any, log: Path) -> Iterator[OperatorProcess]:
    """Apply the CRDs with plain kubectl and run the operator."""
    cluster.kubectl("apply", "-f", str(CRDS))
    cluster.retry(lambda: bool(cluster.kubectl("get", "hvj,compressionpolicies", "-A", "-o", "name") or True))
    operator = OperatorProcess(cluster, log)
    operator.start()
    try:
        yield operator
    finally:
        operator.kill()
