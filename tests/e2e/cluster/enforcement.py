"""Enforce NetworkPolicies on every node, which the bridge plug-in of CNI does not do by itself.

    python -m cluster.enforcement SETTINGS

The process follows pods, namespaces and policies, and gives every node the same nft ruleset in its `forward`
hook, through which both routed and (with br_netfilter) bridged packets of pods go. What it has applied it
writes to a file, so that a test can wait for it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from cluster.certificates import KeyPair
from cluster.commands import run
from cluster.control_plane import ControlPlane
from cluster.errors import ClusterError
from cluster.guardian import FOLDER
from cluster.network_policy import Endpoint, Json, endpoints, ruleset
from cluster.node import Node
from cluster.rest import Rest
from cluster.sandbox import Sandbox
from cluster.waiting import wait_for

_PATHS = {
    "policies": "/apis/networking.k8s.io/v1/networkpolicies",
    "pods": "/api/v1/pods",
    "namespaces": "/api/v1/namespaces",
}
_WATCH_SECONDS = 300
_RETRY_SECONDS = 0.5


class Enforcement:
    """The enforcing process of a cluster whose DNS answers at `dns`, seen from its owner."""

    def __init__(
        self, state: Path, hub: Sandbox, control_plane: ControlPlane, nodes: Sequence[Node], dns: str
    ) -> None:
        self._applied = state / "enforced.nft"
        self._rest = control_plane.rest()
        self._dns = dns
        settings = state / "enforcement.json"
        settings.write_text(
            json.dumps(
                {
                    "server": control_plane.server,
                    "ca": str(control_plane.authority.ca),
                    "certificate": str(control_plane.identity.certificate),
                    "key": str(control_plane.identity.key),
                    "dns": dns,
                    "nodes": [node.sandbox.pid for node in nodes],
                    "applied": str(self._applied),
                }
            )
        )
        program = [sys.executable, "-m", "cluster.enforcement"]
        hub.start("enforcement", *program, settings, environment={"PYTHONPATH": str(FOLDER)})

    def settle(self, seconds: float) -> None:
        """Return when what is in force is what policies, pods and namespaces ask for now."""
        wait_for("NetworkPolicies in force", self._is_settled, seconds)

    def _is_settled(self) -> bool:
        listed = {name: self._rest.get(path)["items"] for name, path in _PATHS.items()}
        return self._applied.exists() and self._applied.read_text() == wanted(listed, self._dns)


def wanted(objects: dict[str, list[Json]], dns: str) -> str:
    """Return the ruleset for the cluster's `objects` (by the names of `_PATHS`).

    The DNS server runs beside the nodes, so that names resolve whichever of them a test cuts off. To policies
    it is the pod that they know from other clusters: `k8s-app: kube-dns` in `kube-system`.
    """
    pods = [*endpoints(objects["pods"]), Endpoint("kube-system", {"k8s-app": "kube-dns"}, dns)]
    labels = {it["metadata"]["name"]: it["metadata"].get("labels") or {} for it in objects["namespaces"]}
    return ruleset(objects["policies"], pods, labels)


class Mirror:
    """A copy of one kind of object that follows the API; `changed` is set at each change."""

    def __init__(self, rest: Rest, path: str, changed: threading.Event) -> None:
        self._rest = rest
        self._path = path
        self._changed = changed
        self.objects: dict[str, Json] | None = None
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        while True:
            try:
                listed = self._rest.get(self._path)
                self.objects = {it["metadata"]["uid"]: it for it in listed["items"]}
                self._changed.set()
                self._watch(listed["metadata"]["resourceVersion"])
            except (OSError, ClusterError) as broken:
                print(f"{self._path}: {broken}", flush=True)
                time.sleep(_RETRY_SECONDS)

    def _watch(self, version: str) -> None:
        for event in self._rest.watch(self._path, version, _WATCH_SECONDS):
            uid = event["object"]["metadata"]["uid"]
            # Replaced and not changed: the applying thread may be reading the old one.
            others = {known: it for known, it in (self.objects or {}).items() if known != uid}
            self.objects = others if event["type"] == "DELETED" else others | {uid: event["object"]}
            self._changed.set()


def main(settings: Path) -> None:
    """Follow the API that `settings` names and keep its nodes' rulesets up to date, for ever."""
    given = json.loads(settings.read_text())
    rest = Rest(given["server"], Path(given["ca"]), KeyPair(Path(given["certificate"]), Path(given["key"])))
    changed = threading.Event()
    mirrors = {name: Mirror(rest, path, changed) for name, path in _PATHS.items()}
    applied, report = "", Path(given["applied"])
    while True:
        changed.wait()
        changed.clear()
        known = {name: mirror.objects for name, mirror in mirrors.items()}
        if any(objects is None for objects in known.values()):
            continue
        text = wanted({name: list((objects or {}).values()) for name, objects in known.items()}, given["dns"])
        if text != applied:
            for node in given["nodes"]:
                run(["nsenter", "--target", str(node), "--net", "--", "nft", "--file", "-"], stdin=text)
            applied = text
            unfinished = report.with_suffix(".new")
            unfinished.write_text(text)
            unfinished.replace(report)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
