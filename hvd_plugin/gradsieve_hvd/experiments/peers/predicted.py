"""What ``gradsieve advise`` predicts of the steps that ``gradsieve bench exchange`` has measured."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache

import torch

from gradsieve import Compression
from gradsieve_hvd.choice.costs import WorkRates
from gradsieve_hvd.choice.machine import measure_rates
from gradsieve_hvd.experiments.advise.prediction import Question, link_of, predictions
from gradsieve_hvd.experiments.tasks import TASKS
from gradsieve_hvd.launcher.rate import parse_rate
from gradsieve_hvd.optimizer.path_changes import allowed_paths

from .contenders import CHOOSING, base_name
from .plan import Row


def predict(rows: Sequence[Row]) -> None:
    """Add ``predicted_seconds`` to rows that were computed by gradsieve's paths with fp32 values.

    The rates of this machine are timed first, which takes a second and should be undisturbed.
    """
    for row in rows:
        if "predicted_seconds" in row or row["recorded"]:
            continue
        by_path = _by_path(row["task"], row["density"], row["link"], row["ranks"], row["compute_seconds"])
        name = base_name(row["contender"])
        if name == CHOOSING:
            row["predicted_seconds"] = min(by_path[path] for path in allowed_paths(Compression.laplace()))
        elif name in by_path:
            row["predicted_seconds"] = by_path[name]


@cache
def _by_path(task: str, density: float, link: str, ranks: int, compute_seconds: float) -> dict[str, float]:
    compressed, small = _sizes(task)
    question = Question(
        elements=sum(compressed),
        ranks=ranks,
        compute_seconds=compute_seconds,
        density=density,
        tensors=len(compressed),
        ranks_per_core=max(ranks / (os.cpu_count() or 1), 1.0),
        whole_elements=sum(small),
    )
    rows = predictions(question, link_of(parse_rate(link)), _rates(density))
    return {row["path"]: row["step_seconds"] for row in rows}


@cache
def _sizes(task: str) -> tuple[list[int], list[int]]:
    """Return the numbers of elements of the tensors that are compressed, and of the others."""
    least = Compression.laplace().min_elements
    sizes = [parameter.numel() for parameter in TASKS[task]().model(seed=0).parameters()]
    return [size for size in sizes if size >= least], [size for size in sizes if size < least]


@cache
def _rates(density: float) -> WorkRates:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as each rank has
    try:
        return measure_rates(density=density)
    finally:
        torch.set_num_threads(threads)
