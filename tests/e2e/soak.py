"""Jobs that live at random on a cluster to which faults happen at random, under the eyes of an onlooker.

    PYTHONPATH=tests/e2e python -m soak [--minutes 30] [--seed 1] [--logs FOLDER]

The seed decides which jobs are made, what is done to them, and the order of the faults; when each of these
happens also depends on the machine.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from cluster.local import Cluster
from cluster_faults import Fault, all_faults
from fault_proxy import FaultProxy
from onlooker import Onlooker, onlooking_at_a_namespace
from replicas import Replicas, running_replicas
from soak_jobs import Author

_AUTHORS = ("train", "idle", "idle", "played", "played", "played", "played")
"""Kinds of the jobs that each author makes. Ranks cost a machine most, simulated pods next to nothing."""

_SIMULATED = tuple(f"played-{number}" for number in range(1, 7))
"""Names of simulated nodes."""

_CALM_SECONDS = (8.0, 15.0)
"""From when one fault is made up for to the next."""

_END_SECONDS = 240.0
"""Longest time for the jobs that there are in the end."""

_PAUSE = 0.3


def another_seed() -> int:
    """Return a seed by chance."""
    return random.SystemRandom().randrange(10**6)


class Soak:
    """One run.

    Args:
        cluster: where the jobs are; it gets simulated nodes for some of them.
        onlooker: judges; what happens in its namespace is what this does.
        seed: of all that happens at random.
        say: is told what happens, the seed first.

    Attributes:
        faults: how often each has happened.
    """

    def __init__(self, cluster: Cluster, onlooker: Onlooker, seed: int, say: Callable[[str], None]) -> None:
        self._cluster, self._onlooker = cluster, onlooker
        self._seed, self._chance, self._say = seed, random.Random(seed), say
        self._authors = [
            Author(cluster, onlooker, random.Random(f"{seed} {number}"), number, kind)
            for number, kind in enumerate(_AUTHORS)
        ]
        self._over = threading.Event()
        self.faults: Counter[str] = Counter()

    @property
    def jobs(self) -> Counter[str]:
        """How many jobs have ended in which way."""
        return sum((author.lived for author in self._authors), Counter())

    def run(self, faults: Callable[[random.Random], list[Fault]], seconds: float) -> None:
        """Let jobs live under faults for so long, and then come to their ends.

        Args:
            faults: returns all that may happen, given what chooses at random.
            seconds: how long faults happen.

        Raises:
            AssertionError: an invariant was broken, or a job has not become what it was to become.
        """
        self._say(f"seed {self._seed}")
        self._cluster.simulate_nodes(_SIMULATED)
        with ThreadPoolExecutor() as thread:
            disturbing = thread.submit(self._disturb, faults, seconds)
            try:
                self._live(disturbing)
            finally:
                self._over.set()
            disturbing.result()
        self._onlooker.settle()

    def _disturb(self, faults: Callable[[random.Random], list[Fault]], seconds: float) -> None:
        """Let one fault happen after the other for so long, all of them before any comes again."""
        began, left = time.monotonic(), []
        while time.monotonic() - began < seconds:
            if self._over.wait(self._chance.uniform(*_CALM_SECONDS)):
                return
            if not left:
                left = faults(self._chance)
                self._chance.shuffle(left)
            fault = left.pop()
            self._say(f"{time.monotonic() - began:6.1f} s: {fault.name}")
            self.faults[fault.name] += 1
            with self._onlooker.disturbed(fault.name, fault.made_up_for):
                fault.happen()
            self._over.wait(fault.made_up_for)

    def _live(self, disturbing: Future[None]) -> None:
        deadline = math.inf
        while not disturbing.done() or any(author.waits_for for author in self._authors):
            for author in self._authors:
                author.go_on(new_jobs=not disturbing.done())
            self._onlooker.check()
            if disturbing.done():
                deadline = min(deadline, time.monotonic() + _END_SECONDS)
            left = [author.waits_for for author in self._authors if author.waits_for]
            assert time.monotonic() < deadline, f"not ended: {left}"
            time.sleep(_PAUSE)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None, help="of an earlier run; at random without it")
    parser.add_argument("--logs", type=Path, help="a folder that keeps history, journal and logs")
    chosen = parser.parse_args()
    seed = another_seed() if chosen.seed is None else chosen.seed
    with ExitStack() as stack:
        folder = chosen.logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        cluster = stack.enter_context(Cluster.start(nodes=3, name="soak"))
        proxy = FaultProxy(cluster, folder)
        stack.enter_context(proxy.serving())
        replicas: Replicas = stack.enter_context(running_replicas(cluster, proxy.kubeconfig, folder))
        onlooker = stack.enter_context(onlooking_at_a_namespace(cluster, folder))
        soak = Soak(cluster, onlooker, seed, lambda line: print(line, flush=True))
        soak.run(partial(all_faults, cluster, proxy, replicas), 60 * chosen.minutes)
        print(f"seed {seed}: no invariant was broken")
        print(f"jobs: {dict(soak.jobs)}\nfaults: {dict(soak.faults)}")
        print(f"requests troubled: {proxy.troubled}; operators ended: {replicas.restarts}")


if __name__ == "__main__":
    main()
