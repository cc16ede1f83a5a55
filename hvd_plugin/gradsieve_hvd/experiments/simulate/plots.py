"""Plots of simulated modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .modes.timeline import Span, Timeline

_FRESH, _LATE, _UNUSED, _VERSION = "#3b75af", "#ef8636", "#c5c5c5", "#c03a3a"
_SAYS = {_FRESH: "becomes the next weights", _LATE: "becomes later ones", _UNUSED: "becomes none yet"}
_SLOWEST = 3.0  # times as long as the fastest mode: longer bars are cut there


def plot_timeline(timeline: Timeline, mode: str, path: Path) -> None:
    """Draw a row per worker: coloured while it computes, by how late its gradient becomes weights, and empty
    while it waits; a line where new weights are made.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure = Figure(figsize=(8.2, 0.9 + 0.28 * timeline.workers), layout="constrained")
    axes = figure.subplots()
    for span in timeline.spans:
        axes.broken_barh(
            [(span.began, span.ended - span.began)], (span.rank - 0.36, 0.72), color=_colour(span),
            edgecolor="white", linewidth=1.2,
        )  # fmt: skip
    for time in timeline.made:
        axes.axvline(time, color=_VERSION, linewidth=0.9)
    axes.set_xlim(0, timeline.horizon)
    axes.set_ylim(timeline.workers - 0.5, -0.5)
    axes.set_yticks(range(timeline.workers), [f"rank {rank}" for rank in range(timeline.workers)])
    axes.set_xlabel("time, in batches of a usual rank", fontsize="small")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False, labelsize="small")
    figure.suptitle(f"{mode}: ranks compute {timeline.computing_share:.0%} of the time", fontsize="medium")
    shown = {_colour(span) for span in timeline.spans if span.began < timeline.horizon}
    parts = [Patch(color=colour, label=text) for colour, text in _SAYS.items() if colour in shown]
    weights = Line2D([], [], color=_VERSION, label="new weights")
    figure.legend(handles=[*parts, weights], loc="outside right upper", fontsize="x-small", frameon=False)
    figure.savefig(path, dpi=110)


def _colour(span: Span) -> str:
    if span.missed is None:
        return _UNUSED
    return _LATE if span.missed else _FRESH


def plot_times(rows: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """Draw the time to the target with its interval, a part for each scenario (from left to right) and
    density, a bar per mode; what did not reach it has none.
    """
    from matplotlib.figure import Figure

    scenarios = list(dict.fromkeys(row["scenario"] for row in rows))
    densities = list(dict.fromkeys(row["density"] for row in rows))
    places = [(scenario, density) for density in densities for scenario in scenarios]
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    size = 2.3 * len(scenarios) + 1.2, (0.5 + 0.24 * len(modes)) * len(densities) + 0.4
    figure = Figure(figsize=size, layout="constrained")
    parts = figure.subplots(len(densities), len(scenarios), squeeze=False).flat
    for axes, place in zip(parts, places, strict=True):
        here = {row["mode"]: row for row in rows if (row["scenario"], row["density"]) == place}
        reached = {mode: row for mode, row in here.items() if row["seconds"] is not None}
        longest = _SLOWEST * min((row["seconds"] for row in reached.values()), default=1.0)
        for number, mode in enumerate(modes):
            if mode not in here:
                continue
            if mode not in reached:
                axes.text(0, number, " not reached", va="center", fontsize="x-small")
                continue
            seconds, low, high = (reached[mode][name] for name in ("seconds", "low", "high"))
            axes.barh(number, seconds, color=_FRESH if mode.startswith("dasp") else _UNUSED)
            axes.plot([low, high], [number, number], color="black", linewidth=1)
            if seconds > longest:
                axes.text(longest, number, f"{seconds:.0f} ", va="center", ha="right", fontsize="x-small")
        axes.set_xlim(0, longest)
        axes.set_ylim(len(modes) - 0.5, -0.5)
        axes.set_yticks(range(len(modes)), modes if axes.get_subplotspec().is_first_col() else [])
        axes.set_title(f"{place[0]}, density {place[1]:g}", fontsize="small")
        axes.tick_params(labelsize="x-small")
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"Time until the loss is reached, {title}", fontsize="medium")
    figure.savefig(path, dpi=110)
