"""What may happen to a cluster, and to the operator on it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http import HTTPStatus

from cluster.local import Cluster
from cluster.simulated_nodes import LABEL
from fault_proxy import FaultProxy
from replicas import Replicas

_CLOCKS_OFF = 300.0
_STOPPED_SECONDS = 25.0
"""Longer than a Lease lasts, so that a leader that stands still for so long has a successor."""


@dataclass(frozen=True)
class Fault:
    """Something that happens.

    Attributes:
        name: in what is printed.
        happen: does it, and returns when it is over.
        made_up_for: seconds after which all is as if it had not been.
    """

    name: str
    happen: Callable[[], None]
    made_up_for: float


def all_faults(
    cluster: Cluster, proxy: FaultProxy, replicas: Replicas, chance: random.Random, seconds: float = 20.0
) -> list[Fault]:
    """Return all faults.

    Args:
        cluster: what they happen to.
        proxy: through which the operator speaks.
        replicas: of the operator.
        chance: chooses a node.
        seconds: how long those last that have no length of their own.
    """

    def during(state: Callable[[], AbstractContextManager[None]], length: float) -> Callable[[], None]:
        def happen() -> None:
            with state():
                time.sleep(length)

        return happen

    def refused(status: HTTPStatus) -> Callable[[], None]:
        return during(lambda: proxy.refusing(status, 0.5), seconds)

    def off(by: float) -> Callable[[], None]:
        return during(lambda: replicas.clocks_off(by), seconds)

    def leader_stands_still() -> None:
        with replicas.held(replicas.wait_for_leader(60)):
            time.sleep(_STOPPED_SECONDS)

    def kubelet_restarts() -> None:
        node = chance.choice(cluster.nodes)
        node.stop_kubelet()
        node.start_kubelet()
        cluster.wait_until_ready(node.name, 60)

    def node_is_deleted() -> None:
        node = chance.choice(cluster.nodes)
        node.stop_kubelet()
        cluster.kubectl("delete", "node", node.name)
        node.start_kubelet()
        cluster.wait_until_ready(node.name, 60)

    def simulated_node_is_replaced() -> None:
        names = cluster.kubectl("get", "nodes", "--selector", LABEL, "--output", "name").split()
        cluster.kubectl("delete", chance.choice(sorted(names)))
        cluster.simulate_nodes([f"played-{chance.getrandbits(32):08x}"])

    return [
        Fault("the API server is killed", cluster.restart_api_server, 30),
        Fault("etcd stands still for 20 s", during(cluster.no_storage, 20), 30),
        Fault("watches are cut", proxy.cut_watches, 15),
        Fault("requests take 500 ms longer", during(lambda: proxy.slow(0.5), seconds), 15),
        Fault("half of the requests meet with 429", refused(HTTPStatus.TOO_MANY_REQUESTS), 30),
        Fault("half of the requests meet with 500", refused(HTTPStatus.INTERNAL_SERVER_ERROR), 30),
        Fault("the operator's clocks are 5 minutes ahead", off(_CLOCKS_OFF), 15),
        Fault("the operator's clocks are 5 minutes behind", off(-_CLOCKS_OFF), 15),
        Fault("the leader is killed", lambda: replicas.kill(replicas.wait_for_leader(60)), 30),
        Fault("the leader stands still for 25 s", leader_stands_still, 30),
        Fault("a kubelet is restarted", kubelet_restarts, 15),
        Fault("a node is deleted, and registers again", node_is_deleted, 30),
        Fault("a simulated node is deleted, and another one joins", simulated_node_is_replaced, 15),
    ]
