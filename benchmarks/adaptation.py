"""What adaptation gains and loses on a hundred clusters, played and recorded, against modes that stay.

``python benchmarks/adaptation.py --replay --json FILE`` trains the digits model of ``gradsieve simulate
modes`` on a virtual clock: with each mode from start to end, and with the operator's `adapt` deciding. The
simulation answers: what a mode gains is what its policy does to real gradients and played delays, never what
`adapt` expects of it. What it sees goes the real way: samples of the ranks, the coordinator's window, its
JSON, the operator's reader.
"""

from __future__ import annotations

import argparse
import bisect
import dataclasses
import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradsieve_hvd.control.telemetry import RankTelemetry, Telemetry
from gradsieve_hvd.control.window import Window as CoordinatorWindow
from gradsieve_hvd.experiments.simulate.modes.run import Cluster, Run, Setting
from gradsieve_hvd.experiments.simulate.modes.stragglers import SCENARIOS, Factor, Scenario
from gradsieve_hvd.experiments.simulate.modes.tasks import ModeTask, digits
from gradsieve_hvd.server.events import Pushed
from gradsieve_hvd.server.modes import MODES
from gradsieve_operator.adapt import Asked, Change, Memory, Plan, adapt, plan_in_force, read_window
from gradsieve_operator.spec import Adaptation

UNIT_SECONDS = 2.0
"""What a nominal batch takes on a nominal worker: a training takes minutes then, as quick adaptation does."""

LOOK_SECONDS = 15.0
LEAST_SAMPLE_SECONDS = 2.0
SETTING = Setting(learning_rate=0.5656854249492379, momentum=0.9)
"""What tuning finds for synchronous training among eight even workers; no mode is tuned for itself."""

TARGET = 0.02
HORIZON = 3000.0
ADAPTATION = Adaptation(enabled=True, interval=15, cooldown=30, min_samples=5)
SIMULATED = {"Synchronous": "synchronous", "Balanced": "balanced", "Adaptive": "dasp"}
RECORDED = Path(__file__).with_name("recorded_paces.json")
"""What ``benchmarks/record_paces.py`` has written."""

Paces = list[list[float]]
"""By rank, what its steps took one after the other, in those of a nominal worker."""

TODAY = ("Synchronous", "Balanced")
"""Modes that the simulation knows, of those that a program with a `DynamicSampler` can change to."""


@dataclass(frozen=True, slots=True)
class Place:
    """One cluster. kind: of its stragglers. persistent: whether somebody is always slow."""

    kind: str
    scenario: Scenario
    workers: int
    seed: int
    persistent: bool = False


def places(clusters: int) -> list[Place]:
    """Return played clusters of all kinds in turn, each with factors, spells and a seed of its own."""
    makers = itertools.cycle(_MAKERS)
    return [next(makers)(np.random.default_rng((17, number)), number) for number in range(clusters)]


def recorded() -> list[Place]:
    """Return the clusters of `RECORDED`."""
    clusters: dict[str, Paces] = json.loads(RECORDED.read_text())["clusters"]
    return [
        Place(kind, Scenario("", _as_recorded(paces)), len(paces), seed, persistent=" times as slow" in kind)
        for seed, (kind, paces) in enumerate(clusters.items())
    ]


def _as_recorded(paces: Paces) -> Factor:
    ends = [list(itertools.accumulate(steps)) for steps in paces]

    def slowness(rank: int, _size: int, time: float, _random: np.random.Generator) -> float:
        # What comes after the end of the recording begins with it again.
        return paces[rank][bisect.bisect_right(ends[rank], time % ends[rank][-1])]

    return slowness


def _even(random: np.random.Generator, seed: int) -> Place:
    return Place("even", SCENARIOS["even"], int(random.choice([4, 8])), seed)


def _slow(random: np.random.Generator, seed: int) -> Place:
    factor, workers = float(random.uniform(1.5, 6.0)), int(random.choice([4, 8]))

    def slowness(rank: int, size: int, _time: float, _random: np.random.Generator) -> float:
        return factor if rank == size - 1 else 1.0

    return Place(f"one {factor:.1f} times as slow", Scenario("", slowness), workers, seed, persistent=True)


def _mixed(random: np.random.Generator, seed: int) -> Place:
    return Place("GPUs 1:1:2:4", SCENARIOS["mixed"], int(random.choice([4, 8])), seed, persistent=True)


def _throttled(random: np.random.Generator, seed: int) -> Place:
    length = float(random.uniform(40.0, 120.0))

    def slowness(rank: int, _size: int, time: float, _random: np.random.Generator) -> float:
        return 4.0 if rank == 0 and int(time / length) % 2 else 1.0

    return Place("throttled for minutes", Scenario("", slowness), 8, seed)


def _flapping(_random: np.random.Generator, seed: int) -> Place:
    def slowness(rank: int, _size: int, time: float, _random: np.random.Generator) -> float:
        return 4.0 if rank == 0 and int(time * UNIT_SECONDS / 5.0) % 2 else 1.0

    return Place("slow every other 5 s", Scenario("", slowness), 8, seed)


def _known(kind: str, name: str) -> Callable[[np.random.Generator, int], Place]:
    return lambda random, seed: Place(kind, SCENARIOS[name], int(random.choice([4, 8])), seed)


_MAKERS = (
    _even,
    _slow,
    _mixed,
    _throttled,
    _even,
    _slow,
    _known("slow in turns", "wander"),
    _flapping,
    _mixed,
    _known("slow at times", "transient"),
)


class Replayed:
    """A training whose mode `adapt` decides.

    Args:
        task: the model.
        place: the cluster.
        modes: that its program can change to.

    changes: when, to what and why.
    """

    def __init__(self, task: ModeTask, place: Place, modes: Sequence[str]) -> None:
        self._task, self._workers = task, place.workers
        self._run = run_of(task, place, "Synchronous")
        self._asked = Asked(
            plan=Plan("Synchronous"), choose_mode=True, modes=tuple(modes), adaptation=ADAPTATION
        )
        self._memory, self._window = Memory(), CoordinatorWindow()
        self._sampled = self._now = 0.0
        self.changes: list[tuple[float, str, str]] = []

    def play(self) -> float:
        """Return the seconds until the target is reached; infinity if it is not."""
        looked = 0.0
        while not self._run.over:
            self._now += LEAST_SAMPLE_SECONDS
            result = self._run.play(until=self._now / UNIT_SECONDS)
            self._sample()
            if self._now - looked >= LOOK_SECONDS:
                looked = self._now
                self._look()
        return result.seconds[0] * UNIT_SECONDS

    def _sample(self) -> None:
        """Report as ranks do: two steps or two seconds after the last time, whichever is later."""
        pushes = defaultdict[int, list[Pushed]](list)
        for push in self._run.pushes:
            pushes[push.rank].append(push)
        steps = sum(push.samples for push in self._run.pushes) / (self._workers * self._task.batch)
        if len(pushes) < self._workers or steps < 2:
            return
        passed = self._now - self._sampled
        ranks = [_times(rank, pushes[rank], passed, self._task.batch) for rank in range(self._workers)]
        numbers = {
            "stepSeconds": passed / steps,
            "waitSeconds": statistics.fmean(rank.wait_seconds or 0.0 for rank in ranks),
            "appliedPlanGeneration": float(self._asked.generation),
            "time": self._now,
        }
        self._window.take(Telemetry(1, int(steps), numbers, tuple(ranks)), self._now)
        self._run.pushes.clear()
        self._sampled = self._now

    def _look(self) -> None:
        served = self._window.to_json()
        window = None
        if served is not None:
            window = read_window(json.loads(json.dumps(served)), age=self._now - self._sampled)
        found = adapt(window, self._asked, self._memory, self._now)
        self._memory = Memory.read(json.loads(json.dumps(found.memory.manifest())), "memory")
        if isinstance(found, Change):
            self.changes.append((self._now, found.plan.mode, found.memory.reason))
            self._asked = dataclasses.replace(self._asked, generation=self._asked.generation + 1)
            self._run.change(MODES[SIMULATED[plan_in_force(self._asked, self._memory).mode]])
            self._run.pushes.clear()
            self._sampled = self._now


def _times(rank: int, pushes: Sequence[Pushed], passed: float, batch: int) -> RankTelemetry:
    work = sum(push.seconds for push in pushes) * UNIT_SECONDS
    share = sum(push.samples for push in pushes) / len(pushes) / batch
    waits = max(passed - work, 0.0) / len(pushes)
    return RankTelemetry(rank, f"host-{rank}", work / len(pushes), waits, work / len(pushes) / share)


def run_of(task: ModeTask, place: Place, mode: str) -> Run:
    """Return a simulated training from its start; the same delays and samples in all modes."""
    cluster = Cluster(place.scenario, place.workers, 1.0, HORIZON)
    return Run(task, MODES[SIMULATED[mode]], cluster, [SETTING], place.seed)


def replay(task: ModeTask, place: Place) -> dict[str, Any]:
    """Return the seconds to the target in every mode, and of adaptation among some of them."""
    fixed = {mode: run_of(task, place, mode).play().seconds[0] * UNIT_SECONDS for mode in SIMULATED}
    row: dict[str, Any] = {"kind": place.kind, "persistent": place.persistent, "workers": place.workers}
    for name, modes in (("today", TODAY), ("all", tuple(SIMULATED))):
        job = Replayed(task, place, modes)
        seconds, best = job.play(), min(fixed[mode] for mode in modes)
        row[name] = {
            "seconds": seconds,
            "regret": seconds / best - 1,
            "gain": 1 - seconds / fixed["Synchronous"],
            "changes": job.changes,
        }
    return row | {"fixed": fixed, "seed": place.seed}


def shown(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table: kinds of clusters against what adaptation gains and regrets."""
    lines = [
        "| cluster | number | modes | gain against synchronous | regret against the best | changes, most |",
        "|---|---:|---|---:|---:|---:|",
    ]
    kinds = defaultdict[str, list[dict[str, Any]]](list)
    for row in rows:
        kinds["one slow" if row["kind"].startswith("one ") else row["kind"]].append(row)
    for kind, found in kinds.items():
        for name in ("today", "all"):
            gains, regrets = ([row[name][field] for row in found] for field in ("gain", "regret"))
            most = max(len(row[name]["changes"]) for row in found)
            lines.append(f"| {kind} | {len(found)} | {name} | {_span(gains)} | {_span(regrets)} | {most} |")
    return "\n".join(lines)


def _span(values: Sequence[float]) -> str:
    finite = [value for value in values if math.isfinite(value)]
    lost = f", {len(values) - len(finite)} never" if len(finite) < len(values) else ""
    if not finite:
        return "never"
    low, middle, high = min(finite), statistics.median(finite), max(finite)
    return f"{100 * middle:.1f} % ({100 * low:.1f} to {100 * high:.1f}){lost}"


def main() -> None:
    """Print a line for each cluster and a table, and write the rows with --json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replay", action="store_true", required=True, help="on simulated clusters")
    parser.add_argument(
        "--clusters", type=int, default=100, help="that are played, besides the recorded ones"
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    task = dataclasses.replace(digits(), target=TARGET)
    rows = []
    for place in [*places(given.clusters), *recorded()]:
        rows.append(replay(task, place))
        told = {name: f"{rows[-1][name]['seconds']:.0f}" for name in ("today", "all")}
        fixed = {mode: f"{seconds:.0f}" for mode, seconds in rows[-1]["fixed"].items()}
        print(place.seed, place.kind, place.workers, fixed, told, rows[-1]["all"]["changes"], flush=True)
    print(shown(rows))
    if given.json:
        given.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
