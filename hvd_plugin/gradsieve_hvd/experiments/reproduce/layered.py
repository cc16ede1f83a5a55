"""Method A's claims: accuracy and convergence of layered adaptive compression.

ALGC (Wang, Zhu, J. Hubei Minzu Univ. (Nat. Sci.) 2025(1):34-40), of which only the abstract is public, names
neither its data nor what it compared with.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from gradsieve_hvd.experiments.bench.convergence import DENSE, FIXED, Row, Setup, measure

from .finding import Finding, Reproduction, points, times

_DENSITY = 0.01
_ADAPTIVE = "layered"
_TARGET = 0.95  # the paper's "up to 95.07 %" is where its comparison ends
_POINT = 0.01
_TEST_IMAGE = 1 / 360  # digits' accuracy cannot tell less
_SLIGHTLY, _CLEARLY = 1.02, 1.1  # ratios: byte budgets are equal within 2 %
_FULL = Setup(ranks=4, steps=600, evaluations=120)
_QUICK = Setup(ranks=2, steps=20, evaluations=4)


@dataclass(frozen=True, slots=True)
class LayeredAdaptive:
    """Trains digits dense, at a fixed density and layered, and compares."""

    title: str = "A, layered adaptive compression"
    source: str = "Wang, Zhu, J. Hubei Minzu Univ. (Nat. Sci.) 2025(1)"

    def reproduce(self, seeds: int, progress: Callable[[str], None], *, quick: bool) -> Reproduction:
        """See :class:`gradsieve_hvd.experiments.reproduce.finding.Claim`."""
        setup = _QUICK if quick else _FULL
        rows = [
            row
            for seed in range(seeds)
            for row in measure("digits", setup, _DENSITY, seed, (FIXED, _ADAPTIVE), progress)
        ]
        setting = (
            f"Handwritten digits, {setup.ranks} simulated ranks, {setup.steps} steps, density {_DENSITY:g}, "
            f"{seeds} seed(s). Fixed density is exact top-k. Times are not taken: on a slow network they "
            "follow the bytes."
        )
        return Reproduction(
            setting=setting,
            findings=findings(rows),
            tables=[_table(rows)],
            measurements={"trainings": rows},
        )


def findings(rows: Sequence[Row]) -> list[Finding]:
    """Return the verdicts on what ``measure`` yields for dense, fixed and layered trainings."""
    dense, fixed = _of(rows, DENSE), _of(rows, FIXED)
    layered, equal = _of(rows, _ADAPTIVE), _of(rows, FIXED, matches=_ADAPTIVE)
    lead = _mean(layered) - _mean(equal)
    behind = _mean(layered) - _mean(dense)
    steps = _ratio(steps_to_target(equal), steps_to_target(layered))
    others = [known for known in map(bytes_to_target, (dense, fixed, equal)) if known is not None]
    fewer = _ratio(min(others, default=None), bytes_to_target(layered))
    return [
        Finding(
            says="accuracy up to 95.07 %, on data that the abstract does not name",
            condition="final accuracy less dense training's: absolute ones of other data say nothing",
            figure=behind,
            shown=points(behind),
            holds_from=-_POINT,
            strongly_from=_TEST_IMAGE,
        ),
        Finding(
            says="the most accurate of its comparison",
            condition="final accuracy less fixed density's at equal bytes",
            figure=lead,
            shown=points(lead),
            holds_from=_TEST_IMAGE,
            strongly_from=_POINT,
        ),
        Finding(
            says="the shortest convergence time",
            condition=f"steps to {100 * _TARGET:g} %, fixed density's at equal bytes / layered's",
            figure=steps,
            shown=times(steps),
            holds_from=_SLIGHTLY,
            strongly_from=_CLEARLY,
        ),
        Finding(
            says="the largest speed-up of its comparison",
            condition=f"bytes to {100 * _TARGET:g} %, the best other's / layered's",
            figure=fewer,
            shown=times(fewer),
            holds_from=_SLIGHTLY,
            strongly_from=_CLEARLY,
        ),
    ]


def steps_to_target(rows: Sequence[Row]) -> float | None:
    """Return the mean number of steps after which the accuracy was first 95 %; None if a seed never was."""
    return _mean_at_target(rows, 0)


def bytes_to_target(rows: Sequence[Row]) -> float | None:
    """Return the mean bytes that a rank had sent by then; None if a seed never was."""
    return _mean_at_target(rows, 1)


def _mean_at_target(rows: Sequence[Row], column: int) -> float | None:
    reached = [next((point for point in row["curve"] if point[2] >= _TARGET), None) for row in rows]
    found = [point[column] for point in reached if point is not None]
    return statistics.fmean(found) if len(found) == len(rows) else None


def _of(rows: Sequence[Row], method: str, matches: str | None = None) -> list[Row]:
    return [row for row in rows if row["method"] == method and row["matches"] == matches]


def _mean(rows: Sequence[Row]) -> float:
    return statistics.fmean(row["value"] for row in rows)


def _ratio(other: float | None, own: float | None) -> float | None:
    return None if other is None or own is None else other / own


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("training", no_wrap=True)
    for name in ("density\n%", "accuracy\n%, mean", "sent\nMB", "steps to\n95 %", "MB to\n95 %"):
        table.add_column(name, justify="right", no_wrap=True)
    parts = {
        "dense": _of(rows, DENSE),
        "fixed density": _of(rows, FIXED),
        "layered": _of(rows, _ADAPTIVE),
        "fixed, bytes as layered": _of(rows, FIXED, matches=_ADAPTIVE),
    }
    for name, own in parts.items():
        steps, sent = steps_to_target(own), bytes_to_target(own)
        table.add_row(
            name,
            f"{100 * statistics.fmean(row['density'] for row in own):.2f}",
            f"{100 * _mean(own):.2f}",
            f"{statistics.fmean(row['sent_bytes'] for row in own) / 1e6:,.1f}",
            "-" if steps is None else f"{steps:.0f}",
            "-" if sent is None else f"{sent / 1e6:,.1f}",
        )
    return table
