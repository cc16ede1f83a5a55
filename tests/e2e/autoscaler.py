"""An autoscaler in miniature: it adds nodes for pods that the scheduler found no place for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kubernetes import client
from simulated_jobs import add_node

_LOOK_SECONDS = 0.5


class Autoscaler:
    """Looks twice a second, as long as it :meth:`runs`.

    Args:
        cluster: of simulated nodes.
        name: that those of its nodes begin with.
        cpu: of each node that it adds.
        most: how many it may add.

    Attributes:
        added: names of its nodes.
        looks: how often it has looked.
    """

    def __init__(self, cluster: Any, name: str, cpu: int, most: int) -> None:
        self._cluster, self._name, self._cpu, self._most = cluster, name, cpu, most
        self._core = client.CoreV1Api(cluster.api)
        self._end = threading.Event()
        self.added: list[str] = []
        self.looks = 0

    @contextmanager
    def runs(self) -> Iterator[Autoscaler]:
        """Run beside the test."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield self
        finally:
            self._end.set()
            thread.join()

    def _run(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            pods = self._core.list_pod_for_all_namespaces().items
            empty = set(self.added) - {pod.spec.node_name for pod in pods}
            lacking = sum(map(_is_unschedulable, pods)) - len(empty)
            for _ in range(min(lacking, self._most - len(self.added))):
                name = f"{self._name}-{len(self.added) + 1}"
                add_node(self._cluster, name, self._cpu)
                self.added.append(name)
            self.looks += 1


def _is_unschedulable(pod: client.V1Pod) -> bool:
    """Whether a pod waits in the way by which autoscalers know it."""
    return any(
        (each.type, each.status, each.reason) == ("PodScheduled", "False", "Unschedulable")
        for each in pod.status.conditions or []
    )
