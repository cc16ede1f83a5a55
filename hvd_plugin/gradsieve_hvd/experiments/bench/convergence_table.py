"""The trainings of ``gradsieve bench convergence`` over their seeds, as a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from .convergence import DENSE

Row = dict[str, Any]
_ACCURACY_MARGIN = 0.01  # a point
_LOSS_MARGIN = 0.01  # of the loss


def summaries(rows: Sequence[Row]) -> list[Row]:
    """Return a row per task, method, budget and learning rate, over the seeds, in their first order.

    values: of the metric, by seed. behind: how much worse than dense the mean over the seeds is that both
    have: a fraction of images for an accuracy, of dense training's loss for a loss; negative is better.
    near_dense: at most 0.01. sent: bytes as a share of dense training's. selections, outside, empty, inexact,
    short: sums over seeds and layers.
    """
    groups: dict[tuple[str, str, str | None, float | None], list[Row]] = {}
    for row in rows:
        key = row["task"], row["method"], row["matches"], row["learning_rate"]
        groups.setdefault(key, []).append(row)
    dense = {_key_of_dense(row): row for row in rows if row["method"] == DENSE}
    return [_summary(own, dense) for own in groups.values()]


def _key_of_dense(row: Row) -> tuple[str, int, float | None]:
    return row["task"], row["seed"], row["learning_rate"]


def _summary(own: Sequence[Row], dense: dict[tuple[str, int, float | None], Row]) -> Row:
    first = own[0]
    result: Row = {key: first[key] for key in ("task", "method", "matches", "metric", "learning_rate")}
    result["values"] = [row["value"] for row in own]
    result["mean"] = statistics.fmean(result["values"])
    result["density"] = statistics.fmean(row["density"] for row in own)
    reference = [dense[_key_of_dense(row)] for row in own]
    usual = statistics.fmean(row["value"] for row in reference)
    worse = usual - result["mean"] if first["metric"] == "accuracy" else result["mean"] / usual - 1
    margin = _ACCURACY_MARGIN if first["metric"] == "accuracy" else _LOSS_MARGIN
    result |= {"behind": worse, "near_dense": worse <= margin}
    result["sent_bytes"] = statistics.fmean(row["sent_bytes"] for row in own)
    result["sent"] = result["sent_bytes"] / statistics.fmean(row["sent_bytes"] for row in reference)
    layers = [layer for row in own for layer in row["layers"]]
    for count in ("selections", "outside", "empty", "inexact", "short"):
        result[count] = sum(layer[count] for layer in layers)
    return result


def table(rows: Sequence[Row]) -> Table:
    """Return the summaries as a table of at most 100 columns."""
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for name in ("task", "method"):
        shown.add_column(name, no_wrap=True)
    for name in ("density\n%", "seeds", "mean", "behind\ndense", "sent, %\nof dense", "selections\noutside"):
        shown.add_column(name, justify="right", no_wrap=True)
    for each in summaries(rows):
        method = each["method"] if each["matches"] is None else f"{each['method']} = {each['matches']}"
        if each["learning_rate"] is not None:
            method += f", rate {each['learning_rate']:g}"
        shown.add_row(
            each["task"],
            method,
            f"{100 * each['density']:.2f}",
            " ".join(_figure(each["metric"], value) for value in each["values"]),
            _figure(each["metric"], each["mean"]),
            f"{100 * each['behind']:+.2f}",
            f"{100 * each['sent']:.2f}",
            f"{each['outside']:,} of {each['selections']:,}" if each["selections"] else "",
        )
    return shown


def _figure(metric: str, value: float) -> str:
    return f"{100 * value:.1f}" if metric == "accuracy" else f"{value:.4f}"
