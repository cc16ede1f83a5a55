"""A rank of ``gradsieve bench modes``: ``python -m gradsieve_hvd.experiments.parallel.worker PLAN``."""

from __future__ import annotations

import ctypes
import math
import sys
from dataclasses import replace
from pathlib import Path

from gradsieve_hvd.experiments.peers.plan import Row
from gradsieve_hvd.experiments.peers.ranks import Ranks
from gradsieve_hvd.experiments.tasks import TASKS, DealtTask
from gradsieve_hvd.server.modes import MODES

from .calibration import calibrate
from .contenders import CONTENDERS
from .plan import ModesPlan, conditions, usual_settings
from .training import RankTraining

_WARM_UP_SECONDS = 1.0  # kernels are loaded in the first steps of a process
_BATCHES = 16
"""How many of the slowest rank, of nominal size, show how much batches scatter, and what exchanges take, of
which some take ten times as long as others.
"""
_LEAST_SECONDS = 2.0
"""That they take at least: exchanges may take ten times as long as a batch of a small model."""
_HARDLY = 1e-9
"""A learning rate with which nothing diverges, as nothing is learned."""
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of mallopt()
_MOST = 2**31 - 1


def exchange(plan: ModesPlan, ranks: Ranks, task: DealtTask, name: str, seconds: float) -> Row | None:
    """Step as a contender does, without learning; return `RankTraining.exchanges`, or None if gradients were
    not finite.
    """
    brief = replace(plan, budget_seconds=seconds, judge_seconds=math.inf)
    training = RankTraining(brief, ranks, task, name, seed=0)
    diverged = training.run(_HARDLY, 0.0)["diverged"]
    return None if diverged else training.exchanges()


def _keep_freed_memory() -> None:
    """Have the C library keep what tensors leave.

    Else it asks the kernel for each large one anew, which fills its pages with zeros: a third of what a batch
    of 1,400 takes, and nothing of what a small one does, so that a sample's time would depend on the batch.
    """
    library = ctypes.CDLL(None)
    library.mallopt(_MMAP_MAX, 0)
    library.mallopt(_TRIM_THRESHOLD, _MOST)


def _calibrate(plan: ModesPlan, ranks: Ranks, task: DealtTask) -> None:
    """Measure what ranks compute for, and what an exchange takes in each mode that is trained with and can be
    simulated; keep it as a row.
    """
    measured = calibrate(task, plan.batch, ranks)
    seconds = max(_BATCHES * max(measured["computing_seconds"]), _LEAST_SECONDS)
    found = {
        name: exchange(plan, ranks, task, name, seconds)
        for name in dict.fromkeys(name for name, *_ in plan.trainings)
        if CONTENDERS[name].mode in MODES
    }
    measured["exchanges"] = {name: each for name, each in found.items() if each is not None}
    if ranks.rank == 0:
        plan.append(conditions(plan, ranks.size) | measured)


def main() -> None:
    """Train what the plan says."""
    _keep_freed_memory()
    plan = ModesPlan.load(Path(sys.argv[1]))
    ranks = Ranks()
    task = TASKS[plan.task]()
    warm_up = replace(plan, budget_seconds=_WARM_UP_SECONDS)
    RankTraining(warm_up, ranks, task, "synchronous", seed=0).run(*usual_settings(task))
    _calibrate(plan, ranks, task)
    for name, seed, rate, momentum in plan.trainings:
        row = RankTraining(plan, ranks, task, name, seed).run(rate, momentum)
        if ranks.rank == 0:
            plan.append(row)
            reached = row["seconds_to_target"]
            said = "not reached" if reached is None else f"reached after {reached:.1f} s"
            setting = f"rate {row['learning_rate']:g}, momentum {row['momentum']:g}"
            print(f"{name}, {setting}: {said}, {row['curve'][-1][1]:.3f} in the end", flush=True)
    _calibrate(plan, ranks, task)  # once more, as a machine may have become another since
    ranks.close()


if __name__ == "__main__":
    main()
