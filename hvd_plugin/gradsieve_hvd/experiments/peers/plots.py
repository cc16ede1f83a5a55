"""Loss over wall-clock seconds: what a user waits for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .plan import Row

_COLOURS = 10  # of matplotlib


class Line(NamedTuple):
    """One training: whose, the seconds since it began, and what its loss or accuracy was then."""

    name: str
    seconds: Sequence[float]
    values: Sequence[float]


def draw_over_seconds(axes: Any, lines: Iterable[Line]) -> None:
    """Draw trainings; those of one name in one colour, the first of them thicker and in the legend."""
    numbers: dict[str, int] = {}
    for line in lines:
        first = line.name not in numbers
        number = numbers.setdefault(line.name, len(numbers))
        axes.plot(
            line.seconds,
            line.values,
            color=f"C{number % _COLOURS}",
            linestyle="-" if number < _COLOURS else "--",
            linewidth=1.5 if first else 0.6,
            label=line.name if first else None,
        )
    axes.set_xscale("log")
    axes.set_xlabel("seconds of training (computing and exchange)")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize="small", ncols=1 + len(numbers) // _COLOURS)


def plot_training(rows: Sequence[Row], title: str, path: Path) -> None:
    """Draw the rows of ``gradsieve bench train``, copies of a contender apart, and the target."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 5.0), layout="constrained")
    axes = figure.subplots()
    shown = [row for row in rows if "#" not in row["contender"]]
    curves = [(row["contender"], list(zip(*row["curve"], strict=True))) for row in shown]
    draw_over_seconds(axes, [Line(name, seconds, values) for name, (_, seconds, values) in curves])
    axes.axhline(rows[0]["until"], color="black", linewidth=0.7, linestyle=":")
    axes.set_ylabel("accuracy on held-out data" if rows[0]["metric"] == "accuracy" else "held-out loss, nats")
    axes.set_title(title, fontsize="medium")
    figure.savefig(path, dpi=110)
