"""Which parallel mode suits uneven ranks or a slow link: seconds of a step, and how much of a step counts."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gradsieve_hvd.choice.costs import Link, WorkRates, predict
from gradsieve_hvd.launcher.stragglers import Straggler, slowness

from .prediction import Question, buckets, link_as_used, predictions

LOCAL_STEPS: Final = 15
_LOCAL_DENSITY: Final = 64 / 4096
_AUTO: Final = ("allgather", "ring", "scatter", "dense", "fp16", "bf16")
"""Paths that ``exchange="auto"`` takes."""

LATE, LATE_AT_TIMES = 0.95, 0.8
"""Efficiency of dasp with ranks that are always slow, and that are slow at times (docs/modes.md)."""

LOST_PER_LOCAL_STEP = 0.03
"""Of the efficiency, by each step between two exchanges (docs/modes.md, local)."""

_LOOKS, _LOOK_SECONDS = 400, 1.0


@dataclass(frozen=True, slots=True)
class Unevenness:
    """How many times as long as an even rank's a batch takes: see `gradsieve_hvd.control.window`.

    harmonic: with all ranks' rates in sum. paced: the same, with nobody faster than the median. slowest: of
    the rank that is slowest on the average. peak: of the slowest at each time, on the average.
    """

    harmonic: float
    paced: float
    slowest: float
    peak: float

    @classmethod
    def of(cls, stragglers: Sequence[Straggler], ranks: int) -> Unevenness:
        """Return what stragglers make of ranks, over some minutes."""
        looks = [
            [slowness(stragglers, rank, ranks, look * _LOOK_SECONDS) for rank in range(ranks)]
            for look in range(_LOOKS if stragglers else 1)
        ]
        means = [statistics.fmean(rank) for rank in zip(*looks, strict=True)]
        pace = statistics.median(means)
        return cls(
            statistics.harmonic_mean(means),
            statistics.harmonic_mean([max(mean, pace) for mean in means]),
            max(means),
            statistics.fmean(max(look) for look in looks),
        )

    @property
    def at_times(self) -> bool:
        """Whether ranks are slow in turns rather than one always."""
        return self.peak - self.slowest > self.slowest - self.harmonic


def modes(
    question: Question, stragglers: Sequence[Straggler], link: Link, rates: WorkRates
) -> Iterator[dict[str, Any]]:
    """Yield a row per mode: mode, step_seconds, efficiency, times_synchronous (time to the same loss).

    1. A step takes as many samples as all ranks take together in a synchronous one.
    2. synchronous waits for whoever is slowest; with ``balanced`` shares even out who always is; with
       ``dasp`` each works at its own rate; within a round of ``local`` short delays even out.
    3. Exchanging: by the fastest path that ``exchange="auto"`` may take; with ``dasp`` as by ``scatter``,
       which also goes to every rank's shard and back; with ``local`` once in 15 steps, 64 of 4 096 entries.

    Args:
        question: about the model and the link; its ``compute_seconds`` are an even rank's.
        stragglers: which ranks are slower.
        link: of every rank.
        rates: of this machine.
    """
    uneven = Unevenness.of(stragglers, question.ranks)
    balanced = uneven.harmonic + (uneven.peak - uneven.slowest)
    late = LATE_AT_TIMES if uneven.at_times else LATE
    found = {
        "synchronous": (_step(question, uneven.peak, _AUTO, link, rates), 1.0),
        "balanced": (_step(question, balanced, _AUTO, link, rates), 1.0),
        "dasp": (_step(question, uneven.paced, ("scatter",), link, rates), late if stragglers else 1.0),
        "local": (
            _local_step(question, uneven.slowest, link, rates),
            1 / (1 + LOST_PER_LOCAL_STEP * (LOCAL_STEPS - 1)),
        ),
    }
    reference = found["synchronous"][0]
    for mode, (seconds, efficiency) in found.items():
        yield {
            "mode": mode,
            "step_seconds": seconds,
            "efficiency": efficiency,
            "times_synchronous": seconds / efficiency / reference,
        }


def _step(question: Question, factor: float, paths: Sequence[str], link: Link, rates: WorkRates) -> float:
    asked = replace(question, compute_seconds=factor * question.compute_seconds)
    rows = predictions(asked, link, rates)
    return min(float(row["step_seconds"]) for row in rows if row["path"] in paths)


def _local_step(question: Question, factor: float, link: Link, rates: WorkRates) -> float:
    asked = replace(question, density=_LOCAL_DENSITY, value_dtype="int2")
    used = link_as_used("allgather", question.ranks, link)
    loads = Counter(buckets(asked))
    ending = sum(  # nothing hides it
        number * predict("allgather", load, question.ranks, used, rates).seconds
        for load, number in loads.items()
    )
    return factor * question.compute_seconds + ending / LOCAL_STEPS
