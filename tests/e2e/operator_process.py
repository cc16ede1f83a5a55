"""The operator as a process of this machine, working on the test cluster, to be killed at will."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MANIFESTS = ROOT / "manifests"
CRDS = MANIFESTS / "crds"
ACCOUNT = "system:serviceaccount:gradsieve-system:gradsieve-operator"


class OperatorProcess:
    """`kopf run -m gradsieve_operator` for one cluster.

    Args:
        cluster: to work on.
        log: file that takes what it says.
    """

    def __init__(self, cluster: Any, log: Path) -> None:
        self._cluster, self._log = cluster, log
        self._kubeconfig = cluster.kubeconfig_of(ACCOUNT)
        self._pidfd: int | None = None
        self._sources: set[str] = set()
        with log.open("ab") as said:
            self._mould = subprocess.Popen(
                [sys.executable, str(HERE / "operator_mould.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )

    def start(self, kubeconfig: Path | None = None) -> None:
        """Start it; returns at once.

        Args:
            kubeconfig: by which it finds the API server; if None, as the account that the manifests make.
        """
        variables = {
            "KUBECONFIG": str(kubeconfig or self._kubeconfig),
            "GRADSIEVE_OPERATOR_CIDRS": ",".join(self._own_addresses()),
        }
        assert self._mould.stdin is not None
        assert self._mould.stdout is not None
        print(json.dumps(variables), file=self._mould.stdin, flush=True)
        self._pidfd = os.pidfd_open(int(self._mould.stdout.readline()))

    def _own_addresses(self) -> set[str]:
        """Return from where this machine calls pods: the jobs' NetworkPolicies have to admit that."""
        if self._sources:
            return self._sources
        where = "jsonpath={.items[*].status.addresses[?(@.type=='InternalIP')].address}"
        for node in self._cluster.kubectl("get", "nodes", "-o", where).split():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((node, 9))
                self._sources.add(f"{probe.getsockname()[0]}/32")
        return self._sources

    def kill(self) -> None:
        """End it as a crash would, without a word."""
        if self._pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            select.select([self._pidfd], [], [])
            os.close(self._pidfd)
            self._pidfd = None

    def close(self) -> None:
        """Kill it, and never start it again."""
        self.kill()
        for stream in (self._mould.stdin, self._mould.stdout):
            assert stream is not None
            stream.close()
        self._mould.wait()

    def said(self) -> str:
        """Return its log."""
        return self._log.read_text()


@contextmanager
def running_operator(cluster: Any, log: Path) -> Iterator[OperatorProcess]:
    """Apply CRDs and rights with plain kubectl, and run the operator with no more than these."""
    cluster.kubectl("apply", "-f", str(CRDS))
    cluster.kubectl("apply", "-f", str(MANIFESTS / "namespace.yaml"), "-f", str(MANIFESTS / "rbac.yaml"))
    cluster.retry(lambda: bool(cluster.kubectl("get", "hvj,compressionpolicies", "-A", "-o", "name") or True))
    operator = OperatorProcess(cluster, log)
    operator.start()
    try:
        yield operator
    finally:
        operator.close()
