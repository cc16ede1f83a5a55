"""The control plane: etcd, API server, controllers, scheduler and DNS, all in the hub's sandbox."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster import simulated_nodes
from cluster.addresses import Addresses
from cluster.binaries import OLDEST_PROGRAMS, program
from cluster.certificates import Authority
from cluster.rest import Rest
from cluster.sandbox import Sandbox
from cluster.waiting import wait_for

_READY_SECONDS = 120

_GARBAGE = {"GOGC": "300", "GOMEMLIMIT": "4GiB"}
"""Memory is plentiful here, processors are not: a quarter of the API server's time went to garbage."""

_GARBAGE_OF_THOUSANDS = {"GOGC": "500", "GOMEMLIMIT": "10GiB"}
"""With ten thousand pods it holds more than a gigabyte: at a limit of four it collects all the time."""

_BATCHED = ("--endpoint-updates-batch-period=1s", "--endpointslice-updates-batch-period=1s")
"""As in clusters of many pods. Without, a fifth of all requests were for endpoints, once for each pod of a
gang; and no name is looked up where nodes are simulated."""

_UNCHECKED = ("--feature-gates=DetectCacheInconsistency=false",)
"""Every five minutes the API server would read all that there is once more, to see whether its caches are
right: work for nobody who measures something else on the same processors."""

# A node is lost after this long without a heartbeat; kubelets send one every two seconds (node.py).
NODE_GRACE_SECONDS = 15

NICE = -5
"""Of the control plane and the operator beside it: three times the weight of a process of the tests. Real
ones do not share their processors with what trains."""


class ControlPlane:
    """What nodes and tests talk to; `identity` and `admin` are an administrator's.

    Args:
        state: the folder of what it writes.
        addresses: of the cluster.
        hub: the sandbox that it runs in.
        audit: rules of an audit policy, the first that matches decides; without any there is no audit log.
        oldest: be of the oldest Kubernetes that is supported: API server and scheduler, and no controllers.

    Attributes:
        audit_log: one line of JSON for each request that was audited.
    """

    def __init__(
        self,
        state: Path,
        addresses: Addresses,
        hub: Sandbox,
        audit: Sequence[dict[str, Any]] = (),
        *,
        oldest: bool = False,
    ) -> None:
        self._state = state
        self._oldest, self._simulated = oldest, False
        self._addresses = addresses
        self._hub = hub
        self._audit = audit
        self.audit_log = state / "audit.log"
        self.server = f"https://{addresses.api}:6443"
        self.authority = Authority(state)
        self.identity = self.authority.issue("admin", "admin", "system:masters")
        self.admin = self.authority.kubeconfig("admin", self.server, self.identity)

    def rest(self, accept: str = "application/json") -> Rest:
        """Return a plain reader of the API, as administrator."""
        return Rest(self.server, self.authority.ca, self.identity, accept)

    def kubeconfig_of(self, user: str) -> Path:
        """Write a kubeconfig of a user who may do what roles bound to that name allow; return its file."""
        name = user.replace(":", "-")  # a colon ends a path in KUBECONFIG
        return self.authority.kubeconfig(name, self.server, self.authority.issue(name, user))

    def start(self, *, nodes: bool = True) -> None:
        """Start everything and return when the API server says that it is ready.

        Args:
            nodes: whether there will be real ones: their pods ask for names, their kubelets send heartbeats.
        """
        self._hub.start(
            "etcd",
            program("etcd"),
            f"--data-dir={self._state / 'etcd' / 'data'}",
            "--unsafe-no-fsync",  # the data need not outlive the machine
            "--log-level=warn",
        )
        self._simulated = not nodes
        self._start_api_server()
        rest = self.rest()
        wait_for("the API server", rest.is_ready, _READY_SECONDS, self._hub.ended)
        self._start_controllers("*" if nodes else "*,-node-lifecycle-controller")
        if nodes:
            self._start_dns()

    def simulate(self) -> None:
        """Have kwok play the nodes of `cluster.simulated_nodes`."""
        if "kwok" in self._hub.children:
            return
        self._hub.start(
            "kwok",
            program("kwok"),
            f"--kubeconfig={self.admin}",
            f"--config={simulated_nodes.STAGES}",
            f"--manage-nodes-with-annotation-selector={simulated_nodes.MARK}=fake",
            f"--cidr={simulated_nodes.PODS}",
            # They send a heartbeat four times in that.
            f"--node-lease-duration-seconds={NODE_GRACE_SECONDS}",
        )

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to the process `name`, as to hold it for a while."""
        self._hub.children[name].send_signal(number)

    def restart_api_server(self) -> None:
        """Kill the API server, start it again, and return when it is ready."""
        self.signal("kube-apiserver", signal.SIGKILL)
        self._hub.stop("kube-apiserver")
        self._start_api_server()
        wait_for("the API server", self.rest().is_ready, _READY_SECONDS, self._hub.ended)

    def _start_api_server(self) -> None:
        api, state = self._addresses.api, self._state
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
        serving = self.authority.issue(
            "apiserver",
            "kube-apiserver",
            None,
            [str(api), "127.0.0.1", str(self._addresses.api_service), *names],
        )
        tokens = self.authority.signing_key("service-accounts")
        self._hub.start(
            "kube-apiserver",
            program("kube-apiserver", oldest=self._oldest),
            f"--advertise-address={api}",
            "--etcd-servers=http://127.0.0.1:2379",
            "--secure-port=6443",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self.authority.ca}",
            f"--service-account-key-file={tokens.certificate}",
            f"--service-account-signing-key-file={tokens.key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={self._addresses.services}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
            "--allow-privileged",
            f"--kubelet-client-certificate={self.identity.certificate}",
            f"--kubelet-client-key={self.identity.key}",
            f"--kubelet-certificate-authority={self.authority.ca}",
            "--kubelet-preferred-address-types=InternalIP",  # nodes' names are in no DNS
            f"--cert-dir={state / 'apiserver'}",
            *self._auditing(),
            *(_UNCHECKED if self._simulated and not self._oldest else ()),
            environment=_GARBAGE_OF_THOUSANDS if self._simulated else _GARBAGE,
        )

    def _auditing(self) -> list[str]:
        if not self._audit:
            return []
        policy = self._state / "audit.json"
        # One line per request, when it is over.
        written = {"omitStages": ["RequestReceived", "ResponseStarted"], "rules": list(self._audit)}
        policy.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", **written}))
        never = 1 << 20
        return [
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit_log}",
            f"--audit-log-maxsize={never}",  # MiB: it stays one file
        ]

    def _start_controllers(self, controllers: str) -> None:
        for name, options in {
            "kube-controller-manager": [
                f"--service-account-private-key-file={self._state / 'service-accounts.key'}",
                f"--root-ca-file={self.authority.ca}",
                "--use-service-account-credentials",
                f"--controllers={controllers}",
                "--kube-api-qps=500",
                "--kube-api-burst=1000",
                "--node-monitor-period=1s",
                f"--node-monitor-grace-period={NODE_GRACE_SECONDS}s",
                *(_BATCHED if self._simulated else ()),
            ],
            "kube-scheduler": ["--kube-api-qps=500", "--kube-api-burst=1000"],
        }.items():
            if self._oldest and name not in OLDEST_PROGRAMS:
                continue
            pair = self.authority.issue(name, f"system:{name}")
            config = self.authority.kubeconfig(name, self.server, pair)
            self._hub.start(
                name,
                program(name, oldest=self._oldest),
                f"--kubeconfig={config}",
                f"--authentication-kubeconfig={config}",
                f"--authorization-kubeconfig={config}",
                f"--cert-dir={self._state / name}",
                "--leader-elect=false",
                *options,
            )

    def _start_dns(self) -> None:
        # On the hub and not in a pod: names must resolve whichever node a test has cut off.
        corefile = self._state / "Corefile"
        corefile.write_text(
            f".:53 {{\n  bind {self._addresses.api}\n  errors\n  kubernetes cluster.local in-addr.arpa {{\n"
            f"    kubeconfig {self.admin}\n    ttl 5\n  }}\n}}\n"
        )
        self._hub.start("coredns", program("coredns"), "-conf", corefile)
