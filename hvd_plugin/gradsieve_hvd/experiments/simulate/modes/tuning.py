"""The same rule finds learning rate and momentum of every mode."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradsieve_hvd.server.node_table import Mode

from .run import Cluster, Run, Setting
from .tasks import ModeTask

_MOMENTA = (0.0, 0.5, 0.8, 0.9)
_RATES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # of η / (1 - momentum)
_PATIENCE = 2.0
_FINER = (2**-0.5, 1.0, 2**0.5)
_TUNING_SEEDS = 1_000_000  # far from the seeds that are measured


def tune(task: ModeTask, mode: Mode, cluster: Cluster, seeds: int) -> list[Setting]:
    """Return settings by their mean time to the target over ``seeds`` seeds that are not measured, the best
    first.

    1. Try η / (1 - momentum) of 1/4 to 8 in octaves with momentum 0, 0.5, 0.8 and 0.9.
    2. Try half octaves around the best rate of the two best momenta: these six are returned.

    A setting that takes over twice as long as the best one of its seed counts as twice as long.
    """
    coarse = [Setting(rate * (1 - momentum), momentum) for momentum in _MOMENTA for rate in _RATES]
    ranked = sorted(_means(task, mode, cluster, coarse, seeds).items(), key=lambda each: each[1])
    best_by_momentum: dict[float, Setting] = {}
    for setting, _ in ranked:
        best_by_momentum.setdefault(setting.momentum, setting)
    finer = [
        Setting(setting.learning_rate * factor, setting.momentum)
        for setting in list(best_by_momentum.values())[:2]
        for factor in _FINER
    ]
    means = _means(task, mode, cluster, finer, seeds)
    return sorted(means, key=lambda setting: means[setting])


def _means(
    task: ModeTask, mode: Mode, cluster: Cluster, settings: Sequence[Setting], seeds: int
) -> dict[Setting, float]:
    sums = dict.fromkeys(settings, 0.0)
    for seed in range(_TUNING_SEEDS, _TUNING_SEEDS + seeds):
        seconds = Run(task, mode, cluster, settings, seed, patience=_PATIENCE).play().seconds
        worst = min(_PATIENCE * min(seconds), cluster.horizon)
        for setting, each in zip(settings, seconds, strict=True):
            sums[setting] += worst if each == math.inf else min(each, worst)
    return sums
