"""One rank of the demo: ``python -m gradsieve_hvd.experiments.demo.worker PLAN``, started by the launcher on
every rank.

Every figure in results.json comes from here:

- ``compute_seconds``: forward, backward and update of the same model on the same batches, on all ranks at
  once, without any exchange; median over steps before and after the training, as a shared machine's speed
  changes from minute to minute;
- ``step_seconds``: the same with it; medians over the steps after the first few, averaged over the ranks;
- ``curve``: after each step, the seconds since the first one began and the loss of this rank's batch; rank
  0's;
- ``payload_bytes_per_step``: what a rank hands to the exchange; ``wire_bytes_per_step``: what the counters of
  its network interface say it sent, less Horovod's idle chatter; both averaged over steps and ranks.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gradsieve_hvd.experiments.tasks import TASKS, Task
from gradsieve_hvd.launcher import counters

from .contenders import SPARSE, compression
from .plan import Plan, Run

_WARM_UP_STEPS = 3  # allocations, the comparison of settings, Horovod's response cache
_IDLE_SECONDS = 2.0
_PROGRESS_SECONDS = 0.5


@dataclass(slots=True)
class Window:
    """What happened between the end of the warm-up and the end of a training."""

    step_seconds: list[float]
    started: float
    sent_at_start: float | None


class Worker:
    """Runs a plan on this rank."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.task: Task = TASKS[plan.task]()
        self.before_horovod = _compute_before_horovod(self.task, plan.compute_steps)
        import horovod.torch as hvd

        hvd.init()
        self.hvd = hvd
        self.idle_bytes_per_second = counters.idle_traffic(_IDLE_SECONDS).sent if _on_a_link() else None

    def run(self) -> None:
        """Train everything in the plan."""
        self._emit(
            kind="compute",
            before_horovod=self._mean(self.before_horovod),
            idle_bytes_per_second=self._mean(self.idle_bytes_per_second),
        )
        for run in self.plan.runs:
            self._train(run)

    def _train(self, run: Run) -> None:
        hvd, task = self.hvd, self.task
        compute_seconds = _compute_alone(task, self.plan.compute_steps, hvd.rank())
        model = task.model(run.seed)
        optimizer = hvd.DistributedOptimizer(
            task.optimizer(model),
            named_parameters=model.named_parameters(),
            compression=compression(run.method, self.plan.density),
        )
        steps = round(run.epochs * task.steps_per_epoch)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        window = Window([], 0.0, None)
        payload_bytes = 0
        shown = 0.0
        curve: list[tuple[float, float]] = []
        trained_seconds = 0.0
        for step in range(steps):
            if step == _WARM_UP_STEPS:
                hvd.barrier()
                window = Window([], time.perf_counter(), _sent_bytes())
                payload_bytes = 0
            begin = time.perf_counter()
            optimizer.zero_grad()
            loss = task.loss(model, step, hvd.rank(), run.seed)
            loss.backward()
            optimizer.step()
            window.step_seconds.append(time.perf_counter() - begin)
            trained_seconds += window.step_seconds[-1]
            curve.append((trained_seconds, loss.item()))
            scheduler.step()
            payload_bytes += self._payload_bytes(run.method, model, optimizer)
            if time.perf_counter() - shown > _PROGRESS_SECONDS:
                shown = time.perf_counter()
                self._emit_progress(run, step, steps, loss.item(), payload_bytes / len(window.step_seconds))
        counted = len(window.step_seconds)
        wire = self._wire_bytes(window)
        hvd.barrier()
        compute_seconds += _compute_alone(task, self.plan.compute_steps, hvd.rank())
        self._emit(
            kind="row",
            task=task.name,
            method=run.method,
            density=self.plan.density if run.method in SPARSE else 1.0,
            seed=run.seed,
            **{task.metric: task.evaluate(model)},
            step_seconds=self._mean(statistics.median(window.step_seconds)),
            compute_seconds=self._mean(statistics.median(compute_seconds)),
            payload_bytes_per_step=self._mean(payload_bytes / counted),
            wire_bytes_per_step=self._mean(None if wire is None else wire / counted),
            curve=curve,
        )

    def _payload_bytes(self, method: str, model: torch.nn.Module, optimizer: Any) -> int:
        if method in SPARSE:
            import gradsieve_hvd

            last = gradsieve_hvd.statistics(optimizer)
            return last.payload_bytes + last.dense_bytes
        return sum(p.numel() for p in model.parameters()) * (2 if method == "fp16" else 4)

    def _wire_bytes(self, window: Window) -> float | None:
        sent = _sent_bytes()
        elapsed = time.perf_counter() - window.started
        if sent is None or window.sent_at_start is None or self.idle_bytes_per_second is None:
            return None
        return sent - window.sent_at_start - self.idle_bytes_per_second * elapsed

    def _mean(self, value: float | None) -> float | None:
        """Mean over the ranks; None stays None (all ranks have it, or none)."""
        if value is None:
            return None
        return float(self.hvd.allreduce(torch.tensor([value], dtype=torch.float64), name="demo.mean"))

    def _emit_progress(self, run: Run, step: int, steps: int, loss: float, bytes_per_step: float) -> None:
        self._emit(
            kind="progress",
            task=self.task.name,
            method=run.method,
            seed=run.seed,
            step=step + 1,
            steps=steps,
            epoch=step // self.task.steps_per_epoch + 1,
            loss=loss,
            payload_bytes_per_step=bytes_per_step,
        )

    def _emit(self, **event: Any) -> None:
        if self.hvd.rank() == 0:
            with Path(self.plan.events).open("a", encoding="utf-8") as file:
                file.write(json.dumps(event) + "\n")


def _on_a_link() -> bool:
    return counters.INTERFACE_VARIABLE in os.environ


def _sent_bytes() -> float | None:
    """What this rank's interface has sent so far; None without an emulated link."""
    return counters.interface_bytes().sent if _on_a_link() else None


def _compute_before_horovod(task: Task, steps: int) -> float:
    """Computing alone, on all ranks at once, with nothing of Horovod in the process yet."""
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    return statistics.median(_compute_alone(task, steps, MPI.COMM_WORLD.rank))


def _compute_alone(task: Task, steps: int, rank: int) -> list[float]:
    """Seconds of training steps without exchange."""
    model = task.model(seed=0)
    optimizer = task.optimizer(model)
    seconds: list[float] = []
    for step in range(steps + 1):
        begin = time.perf_counter()
        optimizer.zero_grad()
        task.loss(model, step, rank, seed=0).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    return seconds[1:]


if __name__ == "__main__":
    Worker(Plan.load(Path(sys.argv[1]))).run()
