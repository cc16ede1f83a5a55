"""The demo's plots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradsieve.config import ALGORITHMS
from gradsieve_hvd.experiments.peers.plots import Line, draw_over_seconds

from .results import Row, Summary

_MARKERS = {
    "dense": "s",
    "fp16": "D",
    "topk": "^",
    "group_topk": "v",
    "laplace": "o",
    "layered": "P",
    "importance": "X",
}


def plot_accuracy(summaries: Sequence[Summary], conditions: str, path: Path) -> None:
    """Accuracy (or loss) against the bytes that a step sends: the upper left (lower left) is where one wants
    to be.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    tasks = list(dict.fromkeys(summary.task for summary in summaries))
    figure = Figure(figsize=(5.2 * len(tasks), 4.2), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for summary in (summary for summary in summaries if summary.task == task):
            factor = 100.0 if summary.metric == "accuracy" else 1.0
            label = _title(summary.method)
            marker = _MARKERS.get(summary.method, "o")
            (line,) = axes.plot(
                summary.bytes_sent / 1e3, factor * summary.value, marker, markersize=9, label=label, alpha=0.7
            )
            axes.plot(
                [summary.bytes_sent / 1e3] * len(summary.values),
                [factor * v for v in summary.values],
                ".",
                color=line.get_color(),
                alpha=0.5,
            )
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())  # else they overlap where the axis spans one decade
        axes.set_xlabel("kB sent per step and rank")
        axes.set_ylabel(
            "test accuracy, %" if summary.metric == "accuracy" else "test loss, nats per character"
        )
        axes.set_title(task)
        axes.margins(0.15)
        if summary.metric == "accuracy":  # differences within a point shall not fill the axis
            axes.set_ylim(axes.get_ylim()[0] - 1, min(100, axes.get_ylim()[1] + 1))
        axes.grid(alpha=0.3)
        axes.legend(loc="best", fontsize="small")
    figure.suptitle(conditions, fontsize="medium")
    figure.savefig(path, dpi=120)


def plot_step_time(summaries: Sequence[Summary], conditions: str, path: Path) -> None:
    """Time of a step, split into computing alone and what the exchange adds."""
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(summary.task for summary in summaries))
    figure = Figure(figsize=(5.2 * len(tasks), 3.6), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        shown = [summary for summary in summaries if summary.task == task]
        labels = [_title(summary.method) for summary in shown]
        compute = [1e3 * min(summary.compute_seconds, summary.step_seconds) for summary in shown]
        exchange = [1e3 * max(0.0, summary.exchange_seconds) for summary in shown]
        axes.barh(labels, compute, color="#8da0cb", label="computing alone")
        bars = axes.barh(
            labels, exchange, left=compute, color="#fc8d62", label="selecting, encoding, exchange"
        )
        axes.bar_label(bars, [f" {1e3 * summary.step_seconds:.0f} ms" for summary in shown], fontsize="small")
        axes.margins(x=0.18)
        axes.invert_yaxis()
        axes.set_xlabel("ms per step")
        axes.set_title(task)
        axes.legend(loc="lower right", fontsize="small")
    figure.suptitle(conditions, fontsize="medium")
    figure.savefig(path, dpi=120)


def plot_loss_over_seconds(rows: Sequence[Row], conditions: str, path: Path) -> None:
    """Loss of rank 0's batches over wall-clock seconds, one line per training."""
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure = Figure(figsize=(5.2 * len(tasks), 3.8), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        of_task = [row for row in rows if row["task"] == task]
        curves = [(row["method"], list(zip(*row["curve"], strict=True))) for row in of_task]
        draw_over_seconds(axes, [Line(_title(name), *curve) for name, curve in curves])
        axes.set_ylabel("training loss, nats")
        axes.set_title(task)
    figure.suptitle(conditions, fontsize="medium")
    figure.savefig(path, dpi=120)


def _title(method: str) -> str:
    return ALGORITHMS[method].title if method in ALGORITHMS else method
