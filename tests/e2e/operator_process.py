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

from cluster.control_plane import NICE

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
        clock: file of a clock of its own, to be set with `set_clock`; None for the machine's.
    """

    def __init__(self, cluster: Any, log: Path, clock: Path | None = None) -> None:
        self._cluster, self._log, self._clock = cluster, log, clock
        self._kubeconfig = cluster.kubeconfig_of(ACCOUNT)
        self._pidfd: int | None = None
        self._sources: set[str] = set()
        if clock is not None:
            self.set_clock(0.0)
        with log.open("ab") as said:
            self._mould = subprocess.Popen(
                ["nice", "-n", str(NICE), sys.executable, str(HERE / "operator_mould.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                env={**os.environ, **({} if clock is None else _faked_time(clock))},
            )

    def start(self, kubeconfig: Path | None = None, **environment: str) -> None:
        """Start it; returns at once.

        Args:
            kubeconfig: by which it finds the API server; if None, as the account that the manifests make.
            environment: what else is in its environment.
        """
        variables = {
            **environment,
            "KUBECONFIG": str(kubeconfig or self._kubeconfig),
            "GRADSIEVE_OPERATOR_CIDRS": ",".join(self._own_addresses()),
            # Ten times as often as by default: no test waits for ten minutes.
            "GRADSIEVE_SECRETS_SECONDS": "60",
        }
        assert self._mould.stdin is not None
        assert self._mould.stdout is not None
        print(json.dumps(variables), file=self._mould.stdin, flush=True)
        if self._pidfd is not None:
            os.close(self._pidfd)
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
            self.signal(signal.SIGKILL)
            select.select([self._pidfd], [], [])
            os.close(self._pidfd)
            self._pidfd = None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        assert self._pidfd is not None
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def ended(self) -> bool:
        """Whether it has ended since it was started."""
        return self._pidfd is not None and bool(select.select([self._pidfd], [], [], 0)[0])

    def set_clock(self, seconds: float) -> None:
        """Let its clock, but not what tells it how much time has passed, be wrong by so much from now on."""
        assert self._clock is not None
        unfinished = self._clock.with_suffix(".new")
        unfinished.write_text(f"{seconds:+.0f}\n")
        unfinished.replace(self._clock)

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


def _faked_time(clock: Path) -> dict[str, str]:
    """Return the environment of a program whose clock is set by a file (Debian's package faketime).

    Monotonic clocks stay right, as they do where a wall clock is set.
    """
    library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def apply_manifests(cluster: Any) -> None:
    """Apply CRDs and rights with plain kubectl."""
    cluster.kubectl("apply", "-f", str(CRDS))
    cluster.kubectl("apply", "-f", str(MANIFESTS / "namespace.yaml"), "-f", str(MANIFESTS / "rbac.yaml"))
    cluster.retry(lambda: bool(cluster.kubectl("get", "hvj,compressionpolicies", "-A", "-o", "name") or True))


@contextmanager
def running_operator(cluster: Any, log: Path) -> Iterator[OperatorProcess]:
    """Apply CRDs and rights, and run the operator with no more than these."""
    apply_manifests(cluster)
    operator = OperatorProcess(cluster, log)
    operator.start()
    try:
        yield operator
    finally:
        operator.close()
