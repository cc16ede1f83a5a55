"""A training whose ranks and link tests set as they like, measured as a coordinator would, on a fake clock.

Its steps do not follow the formulas that decisions expect gains by: exchanging has a start-up time, and a
part of it hides behind the computing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gradsieve_operator.adapt import Asked, Change, Hold, Memory, Plan, Window, Work, adapt, plan_in_force

LOOK_SECONDS, SAMPLE_SECONDS, KEPT = 12.0, 2.0, 32


@dataclass
class MeasuredJob:
    """One job under adaptation.

    Attributes:
        asked: what its author allows.
        ranks: seconds of each rank's work in a step, as a function of the time.
        link: seconds that sending all entries takes, as a function of the time.
        start_up: seconds of an exchange of nothing.
        hidden: part of a step's work behind which exchanging hides.
        costs: mode -> factor to the times of steps under it, for modes that do not keep their promise.
        noise: factor to what is measured, as a function of the time.
        lag: seconds from a change of the mode until steps are those of the new one.
        probes: whether ranks time their link, and so tell start-up times from bandwidth.
    """

    asked: Asked
    ranks: Callable[[float], list[float]]
    link: Callable[[float], float] = lambda now: 0.0
    start_up: float = 0.0
    hidden: float = 0.0
    costs: dict[str, float] = field(default_factory=dict)
    noise: Callable[[float], float] = lambda now: 1.0
    lag: float = 0.0
    probes: bool = False
    now: float = 1000.0
    memory: Memory = field(default_factory=Memory)
    changes: list[tuple[float, Plan, str]] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    _samples: list[tuple[list[float], float, float]] = field(default_factory=list)
    _since_look: float = 0.0

    @property
    def plan(self) -> Plan:
        return plan_in_force(self.asked, self.memory)

    def run(self, seconds: float) -> MeasuredJob:
        """Let time pass; samples come, and the operator looks."""
        for _ in range(round(seconds / SAMPLE_SECONDS)):
            self.now += SAMPLE_SECONDS
            self._sample()
            self._since_look += SAMPLE_SECONDS
            if self._since_look >= LOOK_SECONDS:
                self._since_look = 0.0
                self._look()
        return self

    def _sample(self) -> None:
        work = self.ranks(self.now)
        entries = (self.plan.density_permille or 1000) / 1000
        exchange = max(self.start_up + self.link(self.now) * entries - self.hidden * min(work), 0.0)
        noise = self.noise(self.now)
        mode = self.plan.mode
        if self.changes and self.now < self.changes[-1][0] + self.lag:
            mode = self.changes[-2][1].mode if len(self.changes) > 1 else self.asked.plan.mode
        noisy = [each * noise for each in work]
        computing = self._computing(mode, noisy) * self.costs.get(mode, 1.0)
        self._samples.append((noisy, exchange * noise, computing))
        del self._samples[:-KEPT]

    def _look(self) -> None:
        found = adapt(self.window(), self.asked, self.memory, self.now)
        before, self.memory = self.memory, found.memory
        if isinstance(found, Hold):
            self.holds.append(found)
            return
        assert isinstance(found, Change)
        assert found.plan != plan_in_force(self.asked, before)
        self.changes.append((self.now, found.plan, found.memory.reason))
        self.asked = replace(self.asked, generation=self.asked.generation + 1)
        self._samples.clear()

    def window(self) -> Window | None:
        """Return what a coordinator would serve."""
        if not self._samples:
            return None
        local = self.plan.local_steps or 1
        steps = [computing + exchange / local for _, exchange, computing in self._samples]
        means = [statistics.fmean(rank) for rank in zip(*(work for work, *_ in self._samples), strict=True)]
        median = statistics.median(means)
        return Window(
            generation=self.asked.generation,
            samples=len(self._samples),
            seconds=SAMPLE_SECONDS * len(self._samples),
            age=1.0,
            step=statistics.fmean(steps),
            deviation=statistics.pstdev(steps),
            delay=statistics.fmean(exchange / local for _, exchange, _ in self._samples),
            work=Work(
                harmonic=statistics.harmonic_mean(means),
                paced=statistics.harmonic_mean([max(each, median) for each in means]),
                slowest=max(means),
                peak=statistics.fmean(max(work) for work, *_ in self._samples),
            ),
            host=f"host-{means.index(max(means))}",
            recent=statistics.median(steps[len(steps) // 2 :]),
            bandwidth_seconds=self._bandwidth_seconds() if self.probes else None,
        )

    def _bandwidth_seconds(self) -> float:
        return self.link(self.now) * (self.plan.density_permille or 1000) / 1000

    def _computing(self, mode: str, work: list[float]) -> float:
        """Return a step's seconds without its exchange, for one sample."""
        if mode == "Balanced":
            return len(work) / math.fsum(1 / each for each in work)
        if mode == "Adaptive":
            pace = statistics.median(work)
            return len(work) / math.fsum(1 / max(each, pace) for each in work)
        return max(work)


def even(ranks: int = 8, seconds: float = 0.1) -> Callable[[float], list[float]]:
    """Return ranks that all take as long."""
    return lambda now: [seconds] * ranks


def throttled(
    times: float, since: float, until: float = math.inf, ranks: int = 8
) -> Callable[[float], list[float]]:
    """Return ranks of which the last takes ``times`` as long for a while."""
    return lambda now: [0.1] * (ranks - 1) + [0.1 * times if since <= now < until else 0.1]
