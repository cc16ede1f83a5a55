"""How long workers wait in a mode, played with a model of next to nothing: waiting does not depend on it."""

from __future__ import annotations

from typing import Final

import numpy as np

from gradsieve_hvd.server.modes import Mode

from .perceptron import Perceptron
from .run import Cluster, Run, Setting
from .stragglers import Scenario
from .tasks import ModeTask

_SEEDS: Final = 8
_STAY = Setting(0.0, 0.0)
_NEVER = -1.0  # no loss is as low: a run lasts until the horizon


def waiting_share(mode: Mode, scenario: Scenario, workers: int, batch: int, horizon: float) -> float:
    """Return the share of all workers' time that is not spent on computing; the mean of some seeds.

    batch: samples of a nominal one. horizon: virtual time; see `Cluster`.
    """
    one_sample = np.zeros((1, 1), dtype=np.float32)
    task = ModeTask(Perceptron(1, 1, 1), one_sample, np.zeros(1, dtype=np.int64), batch, _NEVER)
    cluster = Cluster(scenario, workers, 1.0, horizon)
    played = [Run(task, mode, cluster, [_STAY], seed).play() for seed in range(_SEEDS)]
    return float(np.mean([each.waiting_share for each in played]))
