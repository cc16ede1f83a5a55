"""Processor time of the parts of the benchmark, phase by phase, and how fast a processor is."""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
from cluster.simulated import SimulatedCluster


def loop_seconds() -> float:
    """Return the processor time of a fixed loop: figures of machines on which it differs do not compare.

    The median of five, as cores of shared machines are not as fast at all times.
    """
    return round(statistics.median(_loop() for _ in range(5)), 3)


def _loop() -> float:
    began, total = time.process_time(), 0
    for number in range(3_000_000):
        total += number * number % 7
    return time.process_time() - began


class Processors:
    """Takes note of who uses how much.

    Attributes:
        used: phase -> part -> processors, on average; a part that was killed meanwhile is left out.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self.used: dict[str, dict[str, float]] = {}

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Measure what is done meanwhile."""
        before, began = self._times(), time.monotonic()
        yield
        seconds = time.monotonic() - began
        spent = {name: (total - before.get(name, 0.0)) / seconds for name, total in self._times().items()}
        self.used[phase] = {"seconds": round(seconds, 1)} | {
            name: round(share, 3) for name, share in spent.items() if share >= 0
        }

    def _times(self) -> Counter[str]:
        processes = {name: child.pid for name, child in self._cluster.hub.children.items()}
        found: Counter[str] = Counter()
        for name, pid in {**processes, "benchmark": os.getpid()}.items():
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                family = [process, *(process.children(recursive=True) if name.startswith("operator") else ())]
                for each in family:
                    with suppress(psutil.NoSuchProcess):
                        times = each.cpu_times()
                        found[name] += times.user + times.system
        return found
