"""What the steps of ranks say about batches and exchanges. Pure."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gradsieve_hvd.experiments.peers.plan import Row

_USUAL_PART = 0.5
_DIGITS = 3  # of a ratio


@dataclass(frozen=True, slots=True)
class Steps:
    """A rank's steps, one after another.

    samples: of their batches. computing, stepping: seconds until and in ``step()``. held: of stepping, what
    the mode had the rank wait for others; 0 where it steps together with them.
    """

    samples: Sequence[int]
    computing: Sequence[float]
    stepping: Sequence[float]
    held: Sequence[float]


def exchanges(ranks: Sequence[Steps], batch: int, *, together: bool) -> Row:
    """Return what usual steps took, by rank.

    seconds: mean, beside computing and waiting for others; of ranks that step together what the last to come
    waited, the same for all. batch_seconds: mean, of a nominal batch, by what a sample took. batch_ratios:
    what each took against that; of ranks that step together, one after another as they were computed.

    Args:
        ranks: their steps, the same number of each where all step together.
        batch: samples of a nominal one.
        together: whether all ranks take each step together.
    """
    if together:
        of_all = _usual([sum(each) for each in zip(*(rank.samples for rank in ranks), strict=True)])
        usual = [of_all] * len(ranks)
        last = [min(rank.stepping[number] for rank in ranks) for number in of_all]
        seconds = [statistics.mean(last)] * len(ranks)
    else:
        usual = [_usual(rank.samples) for rank in ranks]
        beside = [list(map(operator.sub, rank.stepping, rank.held)) for rank in ranks]
        seconds = [_mean(each, numbers) for each, numbers in zip(beside, usual, strict=True)]
    nominal = [
        [took / samples * batch for took, samples in zip(rank.computing, rank.samples, strict=True)]
        for rank in ranks
    ]
    means = [_mean(each, numbers) for each, numbers in zip(nominal, usual, strict=True)]
    return {
        "seconds": seconds,
        "batch_seconds": means,
        "batch_ratios": [
            [round(each[number] / mean, _DIGITS) for number in numbers]
            for each, mean, numbers in zip(nominal, means, usual, strict=True)
        ],
    }


def _usual(samples: Sequence[int]) -> list[int]:
    """Return the numbers of steps but the first, which brings optimizers to speak to each other, whose
    batches are not much smaller than most. As an epoch ends some are, and what a batch takes however small it
    is would count as what its few samples do.
    """
    least = _USUAL_PART * statistics.median(samples)
    return [number for number, each in enumerate(samples) if number and each >= least] or [0]


def _mean(of_steps: Sequence[float], numbers: Sequence[int]) -> float:
    return statistics.mean(of_steps[number] for number in numbers)
