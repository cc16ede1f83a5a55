"""Loss over wall-clock seconds: what a user waits for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .on_links import links_known
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
    """Draw the rows of ``gradsieve bench train``, copies of a contender apart, and the target; beside it the
    same over the seconds of each link on which it is known what steps take.

    rows: of trainings on one link. title: of what was measured.
    """
    from matplotlib.figure import Figure

    rows = [row for row in rows if "#" not in row["contender"]]
    links = links_known(rows)
    figure = Figure(figsize=(8.5 * (1 + len(links)), 5.0), layout="constrained")
    measured, *others = figure.subplots(1, 1 + len(links), squeeze=False)[0]
    _draw(measured, rows, lines_of(rows), title)
    for axes, link in zip(others, links, strict=True):
        _draw(axes, rows, lines_of(rows, link), f"{link}: steps, times what one takes there")
    figure.savefig(path, dpi=110)


def lines_of(rows: Iterable[Row], link: str | None = None) -> list[Line]:
    """Return the trainings of rows, over the seconds that were measured, or over those that their steps take
    on a link, if that is known.
    """
    lines = []
    for row in rows:
        if link is not None and link not in row.get("on_links", {}):
            continue
        steps, seconds, values = zip(*row["curve"], strict=True)
        if link is not None:
            seconds = tuple(each * row["on_links"][link]["step_seconds"] for each in steps)
        lines.append(Line(row["contender"], seconds, values))
    return lines


def _draw(axes: Any, rows: Sequence[Row], lines: Sequence[Line], title: str) -> None:
    draw_over_seconds(axes, lines)
    axes.axhline(rows[0]["until"], color="black", linewidth=0.7, linestyle=":")
    axes.set_ylabel("accuracy on held-out data" if rows[0]["metric"] == "accuracy" else "held-out loss, nats")
    axes.set_title(title, fontsize="medium")
