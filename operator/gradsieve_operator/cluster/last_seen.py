"""A job's pods as they were last seen: why one that is gone has gone is written nowhere else."""

from __future__ import annotations

from collections.abc import Iterable

from gradsieve_operator.decide import Pod


class LastSeen:
    """The last incarnation of each host, from lists and from a watch.

    A pod that is evicted, or deleted with its node, gets a condition that says so, and is gone a moment
    later: only the watch tells of every pod how it was at the end.
    """

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}

    def told(self, pod: Pod) -> None:
        """The watch has told how a pod is now, or was when it went."""
        known = self._pods.get(pod.host)
        if known is None or pod.generation >= known.generation:
            self._pods[pod.host] = pod

    def listed(self, pods: Iterable[Pod]) -> dict[str, Pod]:
        """A list has shown all pods that are there; returns those that no longer are, by host."""
        there = set()
        for pod in pods:
            there.add(pod.uid)
            known = self._pods.get(pod.host)
            # A list may be older than what the watch has told meanwhile.
            if known is None or known.uid != pod.uid or not known.disruption:
                self.told(pod)
        return {host: pod for host, pod in self._pods.items() if pod.uid not in there}
