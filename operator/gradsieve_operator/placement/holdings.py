"""What pods hold of nodes, kept up to date pod by pod: pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from gradsieve_operator.placement.cluster import Cluster, Load, Node


class Holdings:
    """Totals of what pods hold, so that no picture of the cluster has to count ten thousand pods anew.

    A pod is known by its key, and counted once.
    """

    def __init__(self) -> None:
        self._loads: dict[str, Load] = {}
        self._held: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._ending: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._guarded: dict[str, Load] = {}

    def __contains__(self, pod: str) -> bool:
        return pod in self._loads

    def put(self, pod: str, load: Load | None) -> None:
        """Take note of what a pod holds now; None for nothing."""
        before = self._loads.pop(pod, None)
        if before is not None:
            self._count(before, -1)
            self._guarded.pop(pod, None)
        if load is not None:
            self._loads[pod] = load
            self._count(load, 1)
            if load.keeps_away:
                self._guarded[pod] = load

    def cluster(self, nodes: Iterable[Node]) -> Cluster:
        """Return the cluster with these nodes and what is held of them.

        It shows the totals themselves: it is good until the next pod is put.
        """
        by_name = {node.name: node for node in sorted(nodes, key=lambda node: node.name)}
        return Cluster(by_name, self._held, self._ending, tuple(self._guarded.values()))

    def _count(self, load: Load, times: int) -> None:
        for totals in (self._held, self._ending) if load.ends else (self._held,):
            total = totals[load.node]
            for name, amount in load.requests.items():
                total[name] += times * amount
                if not total[name]:
                    del total[name]
            if not total:
                del totals[load.node]
