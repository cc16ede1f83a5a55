"""A rank of ``gradsieve bench train``: ``python -m gradsieve_hvd.experiments.peers.train_worker PLAN``."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from gradsieve_hvd.experiments.tasks import TASKS, Task

from .contenders import make
from .plan import Row, TrainPlan
from .ranks import Ranks


class _Training:
    """One contender's training on this rank.

    curve: steps, seconds of training and the metric, at every evaluation.
    """

    def __init__(self, plan: TrainPlan, ranks: Ranks, task: Task) -> None:
        self._plan, self._ranks, self._task = plan, ranks, task
        self.curve: list[tuple[int, float, float]] = []
        self._step_seconds: list[float] = []
        self._sent_bytes = 0.0

    def run(self, name: str, seed: int, rate: float | None) -> Row:
        """Train until the target is reached or all steps are taken, and return the row."""
        model = self._task.model(seed)
        plain = self._task.optimizer(model)
        learning_rate = set_rate(plain, rate)
        contender = make(name, model, plain, self._plan.density)
        reached = False
        while not reached and len(self._step_seconds) < self._plan.most_steps:
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
            reached = (
                value >= self._plan.until if self._task.metric == "accuracy" else value <= self._plan.until
            )
        return self._row(name, seed, learning_rate, reached=reached)

    def _evaluated(self, model: nn.Module) -> float:
        """Return what rank 0 finds, on all ranks: they all have its weights, and decide alike."""
        value: float = self._ranks.gather(self._task.evaluate(model) if self._ranks.rank == 0 else None)[0]
        return value

    def _row(self, name: str, seed: int, rate: float, *, reached: bool) -> Row:
        steps, seconds = len(self._step_seconds), self._ranks.mean(sum(self._step_seconds))
        return {
            "link": self._plan.link,
            "ranks": self._ranks.size,
            "contender": name,
            "task": self._plan.task,
            "density": self._plan.density,
            "until": self._plan.until,
            "metric": self._task.metric,
            "seed": seed,
            "learning_rate": rate,
            "steps_to_target": steps if reached else None,
            "seconds_to_target": seconds if reached else None,
            "steps": steps,
            "seconds": seconds,
            "step_seconds": self._ranks.mean(statistics.median(self._step_seconds)),
            "bytes_per_step": self._ranks.mean(self._sent_bytes / steps),
            "curve": self.curve,
        }


def set_rate(plain: Optimizer, rate: float | None) -> float:
    """Set a learning rate, if there is one, and return the one in force."""
    for group in plain.param_groups if rate is not None else ():
        group["lr"] = rate
    return float(plain.param_groups[0]["lr"])


def main() -> None:
    """Train what the plan says."""
    plan = TrainPlan.load(Path(sys.argv[1]))
    ranks = Ranks()
    task = TASKS[plan.task]()
    for name, seed, rate in plan.trainings:
        row = _Training(plan, ranks, task).run(name, seed, rate)
        if ranks.rank == 0:
            plan.append(row | {"idle_bytes_per_second": ranks.idle_bytes_per_second})
            reached = "reached" if row["steps_to_target"] else "not reached"
            print(
                f"{name}, seed {seed}: {reached} after {row['steps']} steps, {row['seconds']:.1f} s",
                flush=True,
            )
    ranks.close()


if __name__ == "__main__":
    main()
