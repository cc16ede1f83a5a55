"""What every method comes to when it trains to the end: accuracy or loss, bytes, and what selections kept.

Simulated ranks in one process: bytes and results are those of real ranks, times are not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gradsieve import Compression, CompressionConfig, DensityWarmup, MomentumCorrection
from gradsieve.config.base import CommonSettings
from gradsieve_hvd.demo.tasks import TASKS, Task
from gradsieve_hvd.simulation.budget import at_equal_bytes
from gradsieve_hvd.simulation.outcome import Outcome, train

Row = dict[str, Any]
DENSE, FIXED = "dense", "topk"
ADAPTIVE = ("layered", "importance")
METHODS: dict[str, Callable[..., CompressionConfig]] = {
    FIXED: Compression.topk,
    "group_topk": Compression.group_topk,
    "laplace": Compression.laplace,
    "sampled": Compression.sampled,
    "layered": Compression.layered,
    "importance": partial(Compression.importance, network_power=0),  # there is no network here
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How a task is trained here, the same for every method but dense, which has the optimizer's momentum.

    momentum: of momentum correction; None leaves momentum to the optimizer. warmup: share of the steps in
    which the density falls from 0.25; 0 for none. evaluations: how often the metric is taken.
    """

    ranks: int
    steps: int
    evaluations: int = 10
    momentum: MomentumCorrection | None = None
    warmup: float = 0.0

    def settings(self) -> CommonSettings:
        """Return what the methods' makers take of it."""
        steps = round(self.warmup * self.steps)
        return {"momentum": self.momentum, "warmup": DensityWarmup(steps=steps) if steps else None}


# Digits needs no extras. The character model at 1 % is several per cent behind dense training without them.
SETUPS = {
    "digits": Setup(ranks=4, steps=2000),
    "charlm-small": Setup(
        ranks=2, steps=4000, momentum=MomentumCorrection(momentum=0.9, masking=False), warmup=0.05
    ),
}


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
    2. For every adaptive method exact top-k at the fixed density at which it sends as many bytes within 2 %:
       ``matches`` names whose. If that is ``density`` itself it is not trained again.
    """
    task = TASKS[task_name]()
    run = partial(_train, task, setup, seed, progress)
    outcomes: dict[str, Outcome] = {}
    for method in (DENSE, *methods):
        outcomes[method] = run(method, density)
        yield _row(task, setup, seed, method, density, outcomes[method])
    for adaptive in (name for name in ADAPTIVE if name in methods):
        first = outcomes[FIXED] if FIXED in outcomes else run(FIXED, density)
        wanted = outcomes[adaptive].sent_bytes
        found, outcome = at_equal_bytes(wanted, density, first, partial(run, FIXED))
        yield _row(task, setup, seed, FIXED, found, outcome) | {"matches": adaptive}


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
        "curve": [dataclasses.astuple(point) for point in outcome.curve],
        "layers": [dataclasses.asdict(layer) for layer in outcome.layers.values()],
    }
