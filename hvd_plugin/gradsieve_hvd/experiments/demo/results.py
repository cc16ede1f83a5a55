"""The demo's measurements: the content of results.json, and the table made from it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

Row = dict[str, Any]
_FIGURES = (
    "accuracy\nor loss",
    "step\nms",
    "computing\nalone ms",
    "exchange\nms",
    "payload\nkB/step",
    "sent\nkB/step",
    "times fewer\nbytes",
    "times\nfaster",
)
_METRICS = ("accuracy", "loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One line of the table: a task's method, over its seeds."""

    task: str
    method: str
    metric: str
    values: tuple[float, ...]  # one per seed
    step_seconds: float
    compute_seconds: float
    payload_bytes: float
    wire_bytes: float | None

    @property
    def value(self) -> float:
        """Mean of the metric over the seeds."""
        return statistics.mean(self.values)

    @property
    def exchange_seconds(self) -> float:
        """What a step takes beyond computing: selecting, encoding, and waiting for the wire."""
        return self.step_seconds - self.compute_seconds

    @property
    def bytes_sent(self) -> float:
        """At the interface where it was counted, else as handed to the exchange."""
        return self.payload_bytes if self.wire_bytes is None else self.wire_bytes


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """One summary per task and method, in the order of first appearance; medians of times, means of bytes
    over the seeds.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["task"], row["method"]), []).append(row)
    return [_summary(task, method, group) for (task, method), group in groups.items()]


def _summary(task: str, method: str, rows: list[Row]) -> Summary:
    metric = next(name for name in _METRICS if name in rows[0])
    wire = [row["wire_bytes_per_step"] for row in rows]
    return Summary(
        task=task,
        method=method,
        metric=metric,
        values=tuple(row[metric] for row in rows),
        step_seconds=statistics.median(row["step_seconds"] for row in rows),
        compute_seconds=statistics.median(row["compute_seconds"] for row in rows),
        payload_bytes=statistics.mean(row["payload_bytes_per_step"] for row in rows),
        wire_bytes=None if None in wire else statistics.mean(wire),
    )


def table(summaries: Sequence[Summary], title: str) -> Table:
    """What the demo prints at its end."""
    result = Table(title=title, title_justify="left")
    for heading in ("task", "method"):
        result.add_column(heading)
    for heading in _FIGURES:
        result.add_column(heading, justify="right", no_wrap=True)
    for position, summary in enumerate(summaries):
        dense = next(
            (other for other in summaries if other.task == summary.task and other.method == "dense"), None
        )
        last_of_task = position + 1 == len(summaries) or summaries[position + 1].task != summary.task
        result.add_row(*_cells(summary, dense), end_section=last_of_task)
    return result


def _cells(summary: Summary, dense: Summary | None) -> list[str]:
    value = f"{100 * summary.value:.1f} %" if summary.metric == "accuracy" else f"{summary.value:.3f}"
    return [
        summary.task,
        summary.method,
        value,
        f"{1e3 * summary.step_seconds:.0f}",
        f"{1e3 * summary.compute_seconds:.0f}",
        f"{1e3 * summary.exchange_seconds:.0f}",
        f"{summary.payload_bytes / 1e3:,.1f}",
        "-" if summary.wire_bytes is None else f"{summary.wire_bytes / 1e3:,.1f}",
        "-" if dense is None else f"{dense.bytes_sent / summary.bytes_sent:.1f}",
        "-" if dense is None else f"{dense.step_seconds / summary.step_seconds:.1f}",
    ]
