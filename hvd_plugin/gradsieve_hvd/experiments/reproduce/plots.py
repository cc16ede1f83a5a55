"""Claim A's plot: what bytes buy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from gradsieve_hvd.experiments.bench.convergence import Row


def plot_accuracy_by_bytes(rows: Sequence[Row], setting: str, path: Path) -> None:
    """Draw accuracy by bytes sent, a line per training: the upper left is where one wants to be."""
    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    axes = figure.subplots()
    names = list(dict.fromkeys(_name(row) for row in rows))
    for row in rows:
        name = _name(row)
        first = next(each for each in rows if _name(each) == name) is row
        sent = [point[1] / 1e6 for point in row["curve"]]
        accuracy = [100 * point[2] for point in row["curve"]]
        label = name if first else None
        axes.plot(sent, accuracy, color=f"C{names.index(name)}", alpha=0.7, linewidth=1, label=label)
    axes.set_xscale("log")
    axes.set_xlabel("MB sent per rank")
    axes.set_ylabel("test accuracy, %")
    axes.set_ylim(80, 100)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
    figure.suptitle(setting, fontsize="x-small", wrap=True)
    figure.savefig(path, dpi=120)


def _name(row: Row) -> str:
    return str(row["method"]) if row["matches"] is None else f"{row['method']}, bytes as {row['matches']}"
