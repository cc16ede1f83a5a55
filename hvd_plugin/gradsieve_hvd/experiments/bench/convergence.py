"""What every method comes to when it trains to the end: accuracy or loss, bytes, and what selections kept.

Simulated ranks in one process: bytes and results are those of real ranks, times are not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from gradsieve import Compression, CompressionConfig, DensityWarmup, MomentumCorrection
from gradsieve.codec import ValueDtype
from gradsieve.config import ALGORITHMS
from gradsieve.config.base import CommonSettings
from gradsieve_hvd.experiments.simulate.budget import at_equal_bytes
from gradsieve_hvd.experiments.simulate.outcome import Outcome, train
from gradsieve_hvd.experiments.tasks import TASKS, Task

Row = dict[str, Any]
OptimizerName = Literal["sgd", "adamw"]
_ADAMW_RATE = 0.002
_SECOND_MOMENT = 0.999
DENSE, FIXED = "dense", "topk"
ADAPTIVE = ("layered", "importance")
METHODS: dict[str, Callable[..., CompressionConfig]] = {
    **{each.name: each.make for each in ALGORITHMS.values()},
    "importance": partial(Compression.importance, network_power=0),  # there is no network here
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How a task is trained here, the same for every method but dense, which has the optimizer's momentum.

    evaluations: how often the metric is taken. momentum: of momentum correction; None leaves momentum to the
    optimizer. warmup: share of the steps in which the density falls from 0.25; 0 for none. min_elements,
    value_dtype: as in the methods' constructors. optimizer: "sgd" is the task's own. learning_rate: None is
    the task's own for SGD, and 0.002 for AdamW. beta1: AdamW's rate of the first moment.
    """

    ranks: int
    steps: int
    evaluations: int = 10
    momentum: MomentumCorrection | None = None
    warmup: float = 0.0
    min_elements: int = 10_000
    value_dtype: ValueDtype = "float32"
    optimizer: OptimizerName = "sgd"
    learning_rate: float | None = None
    beta1: float = 0.9

    def settings(self) -> CommonSettings:
        """Return what the methods' factories take of it."""
        steps = round(self.warmup * self.steps)
        return {
            "momentum": self.momentum,
            "warmup": DensityWarmup(steps=steps) if steps else None,
            "min_elements": self.min_elements,
            "value_dtype": self.value_dtype,
        }

    def make_optimizer(self, task: Task, model: nn.Module) -> Optimizer:
        """Return a new optimizer for the model."""
        if self.optimizer == "adamw":
            rate = self.learning_rate or _ADAMW_RATE
            return torch.optim.AdamW(model.parameters(), lr=rate, betas=(self.beta1, _SECOND_MOMENT))
        made = task.optimizer(model)
        for group in made.param_groups if self.learning_rate is not None else ():
            group["lr"] = self.learning_rate
        return made


# Digits needs no extras. The character model at 1 % is several per cent behind dense training without them.
SETUPS = {
    "digits": Setup(ranks=4, steps=2000),
    "charlm-small": Setup(
        ranks=2, steps=4000, momentum=MomentumCorrection(momentum=0.9, masking=False), warmup=0.05
    ),
}


def setup_of(
    task: str,
    *,
    optimizer: OptimizerName,
    beta1: float,
    learning_rate: float | None,
    min_elements: int,
    values: ValueDtype,
    warmup: float | None,
    steps: int | None,
) -> Setup:
    """Return a task's setup with these instead of its own; None leaves its own, AdamW takes its momentum."""
    own = SETUPS[task]
    return dataclasses.replace(
        own,
        optimizer=optimizer,
        beta1=beta1,
        learning_rate=learning_rate,
        min_elements=min_elements,
        value_dtype=values,
        momentum=own.momentum if optimizer == "sgd" else None,
        warmup=own.warmup if warmup is None else warmup,
        steps=own.steps if steps is None else steps,
    )


def measure(
    task_name: str,
    setup: Setup,
    density: float,
    seed: int,
    methods: Sequence[str],
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Row]:
    """Yield a row per training.

    1. Dense, then every method at ``density``.
    2. For every adaptive method exact top-k at the fixed density at which its payloads are as many bytes
       within 2 %: ``matches`` names whose. If that is ``density`` itself it is not trained again, and
       ``retrained`` is False.
    """
    task = TASKS[task_name]()
    run = partial(_train, task, setup, seed, progress)
    outcomes: dict[str, Outcome] = {}
    for method in (DENSE, *methods):
        outcomes[method] = run(method, density)
        yield _row(task, setup, seed, method, density, outcomes[method])
    for adaptive in (name for name in ADAPTIVE if name in methods):
        first = outcomes[FIXED] if FIXED in outcomes else run(FIXED, density)
        wanted = outcomes[adaptive].payload_bytes
        found, outcome = at_equal_bytes(wanted, density, first, partial(run, FIXED))
        yield _row(task, setup, seed, FIXED, found, outcome) | {
            "matches": adaptive,
            "retrained": found != density,
        }


def _train(
    task: Task, setup: Setup, seed: int, progress: Callable[[str], None], method: str, density: float
) -> Outcome:
    config = None if method == DENSE else METHODS[method](density, **setup.settings())
    return train(
        task,
        config,
        ranks=setup.ranks,
        steps=setup.steps,
        seed=seed,
        evaluate_steps=max(1, setup.steps // setup.evaluations),
        optimizer=partial(setup.make_optimizer, task),
        progress=lambda message: progress(f"{task.name}, seed {seed}, {method} at {density:.3g}: {message}"),
    )


def _row(task: Task, setup: Setup, seed: int, method: str, density: float, outcome: Outcome) -> Row:
    return {
        "task": task.name,
        "method": method,
        "matches": None,
        "seed": seed,
        "density": 1.0 if method == DENSE else density,
        **dataclasses.asdict(setup),
        "metric": task.metric,
        "value": outcome.value,
        "sent_bytes": outcome.sent_bytes,
        "payload_bytes": outcome.payload_bytes,
        "curve": [dataclasses.astuple(point) for point in outcome.curve],
        "layers": [dataclasses.asdict(layer) for layer in outcome.layers.values()],
    }
