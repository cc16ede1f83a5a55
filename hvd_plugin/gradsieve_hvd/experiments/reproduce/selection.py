"""Method E's claims: the Laplace threshold against radix selection and hierarchical selection.

Chen, Liu, Han, J. Zhejiang Univ. (Eng. Sci.) 2021, 55(2):386-394: up to 1.62 and 1.30 times as fast, at the
same accuracy. Compared are rules on the same kernels, each one fused pass where it can be: exact top-k stands
for radix selection, sampled top-k with re-selection (Deep Gradient Compression) for hierarchical selection.
What one writes with torch in several passes (``bench/contenders.py``) is shown beside them and judged by
nothing: it is slower for its passes, not for its rule.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from rich import box
from rich.table import Table

from gradsieve_hvd.experiments.bench import convergence, selection
from gradsieve_hvd.experiments.bench.convergence import FIXED, Row, Setup
from gradsieve_hvd.experiments.bench.recording import Recording

from .finding import Finding, Reproduction, points, times

_DENSITY = 0.01
_WITH_TORCH = ("torch.topk", "torch.kthvalue", "sampled")
_RADIX, _HIERARCHICAL, _LAPLACE = "topk", "sampled, ours", "laplace"
_FASTER_THAN_RADIX, _FASTER_THAN_HIERARCHICAL = 1.62, 1.30
_AS_CLAIMED, _BEYOND = 0.9, 1.1  # of a claimed ratio: what a shared machine's noise may move it by
_POINT = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    task: str
    recorded_steps: int
    elements: int
    rounds: int
    setup: Setup


_FULL = _Size(
    task="charlm",
    recorded_steps=24,
    elements=25_000_000,
    rounds=7,
    setup=Setup(ranks=4, steps=300, evaluations=1),
)
_QUICK = _Size(
    task="digits",
    recorded_steps=8,
    elements=500_000,
    rounds=2,
    setup=Setup(ranks=2, steps=20, evaluations=1),
)


@dataclass(frozen=True, slots=True)
class LaplaceThreshold:
    """Times selections of recorded gradients, and trains digits with and without the estimate."""

    title: str = "E, Laplace threshold"
    source: str = "Chen, Liu, Han, J. Zhejiang Univ. (Eng. Sci.) 2021, 55(2)"

    def reproduce(self, seeds: int, progress: Callable[[str], None], *, quick: bool) -> Reproduction:
        """See :class:`gradsieve_hvd.experiments.reproduce.finding.Claim`."""
        size = _QUICK if quick else _FULL
        trainings = [
            row
            for seed in range(seeds)
            for row in convergence.measure("digits", size.setup, _DENSITY, seed, (FIXED, _LAPLACE), progress)
        ]
        progress("recording gradients")
        source = Recording(size.recorded_steps, size.task)
        names = (*_WITH_TORCH, _RADIX, _HIERARCHICAL, _LAPLACE)
        times_taken = [*selection.measure(source, size.elements, _DENSITY, size.rounds, progress, names)]
        setting = (
            f"{size.elements:,} elements of recorded gradients ({size.task}), density {_DENSITY:g}, CPU, "
            f"{torch.get_num_threads()} thread(s), minima of {size.rounds} interleaved rounds. A step adds "
            "the residual and leaves the rest there; gradsieve's rules, which are compared, go on to the "
            "finished payload, the first three stop at values. "
            f"Accuracy: digits, {size.setup.steps} steps, {seeds} seed(s)."
        )
        return Reproduction(
            setting=setting,
            findings=findings(times_taken, trainings),
            tables=[_table(times_taken)],
            measurements={"selections": times_taken, "trainings": trainings},
        )


def findings(selections: Sequence[Row], trainings: Sequence[Row]) -> list[Finding]:
    """Return the verdicts on the bench's rows and on trainings by exact top-k and by the Laplace rule."""
    seconds = {row["method"]: row["seconds"] for row in selections}
    faster = seconds[_RADIX] / seconds[_LAPLACE]
    than_hierarchical = seconds[_HIERARCHICAL] / seconds[_LAPLACE]
    lead = _mean(trainings, _LAPLACE) - _mean(trainings, FIXED)
    return [
        Finding(
            says=f"up to {_FASTER_THAN_RADIX} times as fast as radix selection",
            condition="seconds per step, exact top-k / Laplace, the same kernels",
            figure=faster,
            shown=times(faster),
            holds_from=_AS_CLAIMED * _FASTER_THAN_RADIX,
            strongly_from=_BEYOND * _FASTER_THAN_RADIX,
        ),
        Finding(
            says=f"up to {_FASTER_THAN_HIERARCHICAL:.2f} times as fast as hierarchical selection",
            condition="seconds per step, sampled top-k with re-selection / Laplace, the same kernels",
            figure=than_hierarchical,
            shown=times(than_hierarchical),
            holds_from=_AS_CLAIMED * _FASTER_THAN_HIERARCHICAL,
            strongly_from=_BEYOND * _FASTER_THAN_HIERARCHICAL,
        ),
        Finding(
            says="at the same accuracy",
            condition="final accuracy less exact top-k's",
            figure=lead,
            shown=points(lead),
            holds_from=-_POINT,
            strongly_from=_POINT,
        ),
    ]


def _mean(trainings: Sequence[Row], method: str) -> float:
    return statistics.fmean(row["value"] for row in trainings if row["method"] == method)


def _table(selections: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("selection", no_wrap=True)
    for name in ("ms\nleast", "ms\nmedian", "ms, first\nstep", "times\nthe floor", "kept/k", "energy\nsent"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in selections:
        table.add_row(
            row["method"],
            f"{1e3 * row['seconds']:.1f}",
            f"{1e3 * row['median_seconds']:.1f}",
            f"{1e3 * row['fresh_seconds']:.1f}",
            f"{row['seconds'] / row['floor_seconds']:.1f}",
            f"{row['kept_ratio']:.2f}",
            f"{row['relative_energy']:.3f}",
        )
    return table
