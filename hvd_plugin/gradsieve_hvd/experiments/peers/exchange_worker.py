"""A rank of ``gradsieve bench exchange``: ``python -m gradsieve_hvd.experiments.peers.exchange_worker PLAN``.

Contenders take turns in every round, each with a model of its own, so that all of them see how a machine's
speed changes.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from pathlib import Path

from gradsieve_hvd.experiments.tasks import TASKS, Task

from .contenders import ALONE, CHOOSING, base_name, make, steps_together
from .optimizers import plain_optimizer
from .plan import ExchangePlan, Row
from .ranks import Measured, Ranks
from .recorded import RecordedTask

_FIRST_STEPS = 3  # not counted: allocations, DDP's new buckets, PowerSGD's two dense steps
_LONGEST_TURN_SECONDS = 10.0  # of a contender, unless a single step takes longer
_CHOOSING_STEPS, _CHOOSING_SECONDS = 350, 320.0
"""For so long a contender that chooses its path trains before it counts: until it has compared the paths that
are nearly alike. A measurement is short, and these trials would be a large part of it."""


class _Stepping:
    """One contender on this rank."""

    def __init__(self, name: str, task: Task, plan: ExchangePlan, rank: int) -> None:
        model = task.model(seed=0)
        self._task, self._rank, self._step = task, rank, 0
        self._together = steps_together(name)
        self._contender = make(name, model, plain_optimizer(plan.optimizer, task, model), plan.density)
        self.finish = self._contender.finish

    def whole(self, steps: int) -> int:
        """Return the least number of steps that is not smaller and ends with an exchange."""
        return math.ceil(steps / self._together) * self._together

    def take(self, steps: int) -> list[float]:
        """Train so many `whole` steps, and return the seconds of a step in each run of steps that ends with
        an exchange.
        """
        return [self._run() / self._together for _ in range(0, steps, self._together)]

    def _run(self) -> float:
        began = time.perf_counter()
        for _ in range(self._together):
            self._contender.optimizer.zero_grad()
            self._task.loss(self._contender.forward, self._step, self._rank, 0).backward()
            self._contender.optimizer.step()
            self._step += 1
        return time.perf_counter() - began

    @property
    def path(self) -> str:
        """That compressed gradients take next, of an optimizer that knows; otherwise empty."""
        explain = getattr(self._contender.optimizer, "explain", None)
        return "" if explain is None else str(explain().path)


def measure(plan: ExchangePlan, ranks: Ranks) -> dict[str, Measured]:
    """Return what this rank measured, by contender; `ALONE` is the first."""
    task: Task = TASKS[plan.task]()
    if plan.recorded:
        task = RecordedTask(task, ranks.rank, plan.recorded)
    names = (ALONE, *plan.contenders)
    stepping = {name: _Stepping(name, task, plan, ranks.rank) for name in names}
    measured = {}
    for name, each in stepping.items():
        ranks.begin_turn()
        seconds = each.take(each.whole(_FIRST_STEPS))
        if base_name(name) == CHOOSING:
            seconds += each.take(int(min(_CHOOSING_STEPS, _CHOOSING_SECONDS / ranks.mean(seconds[-1]))))
        fitting = int(_LONGEST_TURN_SECONDS / ranks.mean(seconds[-1]))
        measured[name] = Measured(each.whole(max(1, min(plan.steps, fitting))))
    for _ in range(plan.rounds):
        for name, counted in measured.items():
            ranks.begin_turn()
            seconds = stepping[name].take(counted.steps)
            counted.turns.append(ranks.end_turn())
            counted.step_seconds.append(statistics.median(seconds))
            counted.paths.append(stepping[name].path)
    for each in stepping.values():
        each.finish()
    return measured


def rows(plan: ExchangePlan, every: list[dict[str, Measured]]) -> list[Row]:
    """Return a row per contender, of all ranks' measurements.

    step_seconds: median over rounds of the mean over ranks of each one's median step. spread: from the least
    to the largest round, over that. wire_bytes: a step's, mean over ranks and rounds. paths: at the end of
    each round, where gradsieve's optimizer takes one.
    """
    computing = _round_seconds(every, ALONE)
    made = []
    for name in every[0]:
        rounds = _round_seconds(every, name)
        seconds = statistics.median(rounds)
        turns = [turn for each in every for turn in each[name].turns]
        steps = every[0][name].steps
        made.append(
            {
                "link": plan.link,
                "ranks": len(every),
                "contender": name,
                "task": plan.task,
                "optimizer": plan.optimizer,
                "density": plan.density,
                "recorded": bool(plan.recorded),
                "step_seconds": seconds,
                "compute_seconds": statistics.median(computing),
                "wire_bytes": statistics.mean(turn.sent_bytes for turn in turns) / steps,
                "spread": (max(rounds) - min(rounds)) / seconds,
                "rounds": rounds,
                "paths": every[0][name].paths,
                "user_seconds": statistics.mean(turn.user_seconds for turn in turns) / steps,
                "system_seconds": statistics.mean(turn.system_seconds for turn in turns) / steps,
            }
        )
    return made


def _round_seconds(every: list[dict[str, Measured]], name: str) -> list[float]:
    rounds = zip(*(each[name].step_seconds for each in every), strict=True)
    return [statistics.mean(ranks) for ranks in rounds]


def main() -> None:
    """Measure what the plan says."""
    plan = ExchangePlan.load(Path(sys.argv[1]))
    ranks = Ranks()
    every = ranks.gather(measure(plan, ranks))
    if ranks.rank == 0:
        for row in rows(plan, every):
            plan.append(row | {"idle_bytes_per_second": ranks.idle_bytes_per_second})
    ranks.close()


if __name__ == "__main__":
    main()
