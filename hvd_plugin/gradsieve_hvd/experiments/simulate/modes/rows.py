"""Tune a mode, measure it with seeds of its own, and compare modes by pairs of seeds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from gradsieve_hvd.server.modes import DASP_WITH_SHARES, MODES, Mode

from .run import Cluster, Result, Run, Setting
from .stragglers import SCENARIOS
from .tasks import MODE_TASKS, ModeTask
from .tuning import tune

SIMULATED: Mapping[str, Mode] = MappingProxyType(dict(MODES) | {"dasp-shares": DASP_WITH_SHARES})
_COLLECTIVE = ("synchronous", "balanced")  # which have no server that would answer
BASELINES = ("synchronous", "asp", "ssp", "dssp")
_RESAMPLES = 2_000
_MOST_SETTINGS = 3


@dataclass(frozen=True, slots=True)
class Cell:
    """What one row is about. answer: see `Scenario`. setting: learning rate and momentum; None tunes them."""

    task: str
    workers: int
    scenario: str
    mode: str
    density: float
    seeds: int
    tuning_seeds: int
    horizon: float
    answer: float = 0.0
    setting: Setting | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A cell with its setting, and what every seed came to; infinite seconds: the target was not reached.

    passed_over: better settings by the seeds of tuning, with which not every seed here reached the target.
    batches: see `Result`, mean over seeds.
    """

    cell: Cell
    setting: Setting
    passed_over: int
    seconds: list[float]
    batches: float
    waiting_share: float
    staleness_mean: float

    @property
    def reached(self) -> bool:
        """Whether every seed has reached the target."""
        return all(map(math.isfinite, self.seconds))

    def row(self) -> dict[str, Any]:
        """Return the row of the JSON file; times and batches are null if a seed did not reach the target."""
        reached = self.reached
        low, high = interval(self.seconds) if reached else (None, None)
        chosen = ("task", "workers", "scenario", "mode", "density", "seeds", "answer")
        cell = dataclasses.asdict(self.cell)
        return {name: cell[name] for name in chosen} | {
            "seconds": float(np.mean(self.seconds)) if reached else None,
            "low": low,
            "high": high,
            "learning_rate": self.setting.learning_rate,
            "momentum": self.setting.momentum,
            "passed_over": self.passed_over,
            "batches": self.batches if reached else None,
            "waiting_share": self.waiting_share,
            "staleness_mean": self.staleness_mean,
        }


def measure(cell: Cell) -> Measured:
    """Tune unless the cell brings a setting, then run every seed; a seed's delays and samples are the same in
    all modes.
    """
    task, mode = _task(cell.task), SIMULATED[cell.mode]
    answer = 0.0 if cell.mode in _COLLECTIVE else cell.answer
    scenario = dataclasses.replace(SCENARIOS[cell.scenario], answer=lambda _: answer)
    cluster = Cluster(scenario, cell.workers, cell.density, cell.horizon)
    settings = [cell.setting] if cell.setting else tune(task, mode, cluster, cell.tuning_seeds)

    def play(setting: Setting) -> list[Result]:
        return [Run(task, mode, cluster, [setting], seed).play() for seed in range(cell.seeds)]

    chosen, results = best_that_arrives(settings, play)
    return Measured(
        cell,
        settings[chosen],
        chosen,
        [each.seconds[0] for each in results],
        float(np.mean([each.batches for each in results])),
        float(np.mean([each.waiting_share for each in results])),
        float(np.mean([each.staleness_mean for each in results])),
    )


def table_rows(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return the rows of the JSON file, with ``efficiency``: how much a mode's batch does for the loss,
    compared with one of synchronous training in the same cluster; null where one of the two did not reach the
    target.
    """
    synchronous = {_place(each): each for each in measured if each.cell.mode == "synchronous"}
    rows = []
    for each in measured:
        beside = synchronous.get(_place(each))
        known = beside is not None and beside.reached and each.reached
        rows.append(each.row() | {"efficiency": beside.batches / each.batches if known and beside else None})
    return rows


def best_that_arrives(
    settings: Sequence[Setting], play: Callable[[Setting], list[Result]]
) -> tuple[int, list[Result]]:
    """Return the number of the best setting with which every seed reached the target, and what came of it; of
    three that fail, the one that does so least.

    Few seeds of tuning may choose a setting that fails now and then, and a mean over others says nothing.

    Args:
        settings: the best first.
        play: runs all seeds with one.
    """
    tried = []
    for setting in settings[:_MOST_SETTINGS]:
        tried.append(play(setting))
        if not _failed(tried[-1]):
            break
    chosen = min(range(len(tried)), key=lambda each: _failed(tried[each]))
    return chosen, tried[chosen]


def _failed(results: Sequence[Result]) -> int:
    return sum(each.seconds[0] == math.inf for each in results)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean."""
    return _percentiles(_resampled(np.asarray(values)).mean(axis=1))


def change(seconds: Sequence[float], against: Sequence[float]) -> tuple[float, float, float]:
    """Return by how much less or more time than ``against`` it took, as a fraction of that, and its 95 %
    bootstrap interval; seeds are paired.
    """
    pairs = np.stack([np.asarray(seconds), np.asarray(against)], axis=1)
    means = _resampled(pairs).mean(axis=1)
    low, high = _percentiles(means[:, 0] / means[:, 1] - 1)
    return float(pairs[:, 0].mean() / pairs[:, 1].mean() - 1), low, high


def comparisons(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return each `dasp` against the best of BSP, ASP, SSP and DSSP where it was measured with them."""
    found = []
    for dasp in (each for each in measured if each.cell.mode.startswith("dasp")):
        beside = [each for each in measured if _place(each) == _place(dasp) and each.cell.mode in BASELINES]
        reached = [each for each in beside if each.reached]
        if not reached or not dasp.reached:
            continue
        best = min(reached, key=lambda each: float(np.mean(each.seconds)))
        less, low, high = change(dasp.seconds, best.seconds)
        names = {"scenario": dasp.cell.scenario, "workers": dasp.cell.workers, "density": dasp.cell.density}
        found.append(
            names
            | {"mode": dasp.cell.mode, "against": best.cell.mode, "change": less, "low": low, "high": high}
        )
    return found


def _place(measured: Measured) -> tuple[str, int, str, float]:
    cell = measured.cell
    return cell.task, cell.workers, cell.scenario, cell.density


@lru_cache
def _task(name: str) -> ModeTask:
    return MODE_TASKS[name]()


def _resampled(values: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    random = np.random.default_rng(0)
    chosen: np.ndarray[Any, np.dtype[np.float64]] = values[
        random.integers(len(values), size=(_RESAMPLES, len(values)))
    ]
    return chosen


def _percentiles(values: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[float, float]:
    low, high = np.percentile(values, (2.5, 97.5))
    return float(low), float(high)
