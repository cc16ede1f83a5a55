"""A rank of ``gradsieve bench train``: ``python -m gradsieve_hvd.experiments.peers.train_worker PLAN``."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from gradsieve_hvd.experiments.tasks import TASKS, Task

from .contenders import make, steps_together
from .optimizers import plain_optimizer
from .plan import Row, Training, TrainPlan
from .ranks import Ranks
from .reaching import Target, first_at


class _Training:
    """One contender's training on this rank.

    curve: steps, seconds of training and the metric, at every evaluation.
    """

    def __init__(self, plan: TrainPlan, ranks: Ranks, task: Task) -> None:
        self._plan, self._ranks, self._task = plan, ranks, task
        self.curve: list[tuple[int, float, float]] = []
        self._step_seconds: list[float] = []
        self._sent_bytes = 0.0

    def run(self, training: Training, target: float | None, most_steps: int) -> Row:
        """Train until the target is reached or all steps are taken, and return the row, the same on all
        ranks. Without a target, what is reached in the end is that of the row.
        """
        name, seed, rate = training
        model = self._task.model(seed)
        plain = plain_optimizer(self._plan.optimizer, self._task, model)
        set_rate(plain, rate)
        contender = make(name, model, plain, self._plan.density)
        rising = self._task.metric == "accuracy"
        while not self._has_reached(target, rising=rising) and len(self._step_seconds) < most_steps:
            self._ranks.begin_turn()
            for _ in range(self._plan.evaluate_steps):
                began = time.perf_counter()
                contender.optimizer.zero_grad()
                self._task.loss(contender.forward, len(self._step_seconds), self._ranks.rank, seed).backward()
                contender.optimizer.step()
                self._step_seconds.append(time.perf_counter() - began)
            self._sent_bytes += self._ranks.end_turn().sent_bytes
            value = self._evaluated(model)
            self.curve.append((len(self._step_seconds), sum(self._step_seconds), value))
        contender.finish()
        until = self.curve[-1][-1] if target is None else target
        return self._row(name, seed, rate, until, first_at(self.curve, until, rising=rising))

    def _has_reached(self, target: float | None, *, rising: bool) -> bool:
        return target is not None and first_at(self.curve, target, rising=rising) is not None

    def _evaluated(self, model: nn.Module) -> float:
        """Return what rank 0 finds, on all ranks: they all have its weights, and decide alike."""
        value: float = self._ranks.gather(self._task.evaluate(model) if self._ranks.rank == 0 else None)[0]
        return value

    def _step_of(self, together: int) -> float:
        """Return what a step took, the median over runs of steps that end with an exchange."""
        starts = range(0, len(self._step_seconds), together)
        return statistics.median(statistics.mean(self._step_seconds[i : i + together]) for i in starts)

    def _row(self, name: str, seed: int, rate: float, until: float, reached: int | None) -> Row:
        """reached: the place in the curve at which it was ``until``."""
        steps, seconds = len(self._step_seconds), self._ranks.mean(sum(self._step_seconds))
        return {
            "link": self._plan.link,
            "ranks": self._ranks.size,
            "contender": name,
            "task": self._plan.task,
            "density": self._plan.density,
            "optimizer": self._plan.optimizer,
            "until": until,
            "metric": self._task.metric,
            "seed": seed,
            "learning_rate": rate,
            "steps_to_target": None if reached is None else self.curve[reached][0],
            "seconds_to_target": None if reached is None else self._ranks.mean(self.curve[reached][1]),
            "steps": steps,
            "seconds": seconds,
            "step_seconds": self._ranks.mean(self._step_of(steps_together(name))),
            "bytes_per_step": self._ranks.mean(self._sent_bytes / steps),
            "curve": self.curve,
        }


def set_rate(plain: Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters."""
    for group in plain.param_groups:
        group["lr"] = rate


def main() -> None:
    """Train what the plan says."""
    plan = TrainPlan.load(Path(sys.argv[1]))
    ranks = Ranks()
    task = TASKS[plan.task]()
    target, found = Target.parse(plan.until), [*plan.found]
    for name, seed, rate in plan.trainings:
        sets = target.contender == name
        until, most = (None, target.steps) if sets else (target.of(seed, found), plan.most_steps)
        row = _Training(plan, ranks, task).run((name, seed, rate), until, most)
        if sets:
            found.append(row)
        if ranks.rank == 0:
            plan.append(row | {"idle_bytes_per_second": ranks.idle_bytes_per_second})
            reached = "not reached" if row["steps_to_target"] is None else "reached"
            took = f"{row['steps']} steps, {row['seconds']:.1f} s"
            print(f"{name}, seed {seed}: {row['until']:.4g} {reached} after {took}", flush=True)
    ranks.close()


if __name__ == "__main__":
    main()
