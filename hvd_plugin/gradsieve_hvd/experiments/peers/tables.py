"""Tables of what was measured, one per link and number of ranks. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.table import Table

from gradsieve_hvd.launcher.rate import parse_rate

from .contenders import base_name
from .plan import Row

LARGEST_A_A_DIFFERENCE = 0.08  # above it a table is undecided
_MILLI, _KILO, _BITS = 1e3, 1e3, 8


def exchange_table(rows: Sequence[Row]) -> Table:
    """What a step takes, of one link and number of ranks."""
    computing = rows[0]["compute_seconds"]
    table = _table(
        rows,
        "step ms",
        "predicted",
        "spread",
        "beyond computing ms",
        "bytes alone ms",
        "sent kB",
        "user ms",
        "system ms",
    )
    rate = parse_rate(rows[0]["link"])
    for row in rows:
        table.add_row(
            row["contender"],
            f"{row['step_seconds'] * _MILLI:,.0f}",
            f"{row['predicted_seconds'] * _MILLI:,.0f}" if "predicted_seconds" in row else "-",
            f"{row['spread']:.0%}",
            f"{(row['step_seconds'] - computing) * _MILLI:,.0f}",
            "-" if rate is None else f"{row['wire_bytes'] * _BITS / rate * _MILLI:,.0f}",
            f"{row['wire_bytes'] / _KILO:,.0f}",
            f"{row['user_seconds'] * _MILLI:,.0f}",
            f"{row['system_seconds'] * _MILLI:,.0f}",
        )
    return table


def train_table(rows: Sequence[Row]) -> Table:
    """What it takes to reach the target, of one link and number of ranks: medians over seeds."""
    table = _table(rows, "rate", "seeds", "steps", "seconds", "least to most", "step ms", "sent kB")
    by_name: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        by_name.setdefault((row["contender"], row["learning_rate"]), []).append(row)
    for (name, learning_rate), group in by_name.items():
        table.add_row(
            name,
            f"{learning_rate:g}",
            str(len(group)),
            _until_target(group, "steps_to_target", "steps", "{:,.0f}"),
            _until_target(group, "seconds_to_target", "seconds", "{:,.1f}"),
            f"{min(row['seconds'] for row in group):,.1f} to {max(row['seconds'] for row in group):,.1f}",
            f"{statistics.median(row['step_seconds'] for row in group) * _MILLI:,.0f}",
            f"{statistics.mean(row['bytes_per_step'] for row in group) / _KILO:,.0f}",
        )
    return table


def a_a_differences(rows: Sequence[Row], seconds: str) -> Iterator[str]:
    """Yield a sentence per contender that was measured twice: what a difference between two others means.

    seconds: the field compared; of several seeds, their medians.
    """
    by_kind: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row[seconds] is not None:
            kind = by_kind.setdefault(base_name(row["contender"]), {})
            kind.setdefault(row["contender"], []).append(row[seconds])
    for pair in by_kind.values():
        medians = [statistics.median(values) for values in pair.values()]
        if len(medians) > 1:
            difference = max(medians) / min(medians) - 1
            verdict = "; undecided: measure again" if difference > LARGEST_A_A_DIFFERENCE else ""
            yield f"A/A: {' and '.join(pair)} differ by {difference:.1%}{verdict}."


def by_link_and_ranks(rows: Iterable[Row]) -> dict[tuple[str, int], list[Row]]:
    """Return rows in groups that stand in one table, in the order in which they were measured."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["link"], row["ranks"]), []).append(row)
    return groups


def _table(rows: Sequence[Row], *columns: str) -> Table:
    first = rows[0]
    table = Table(title=f"{first['task']}, {first['ranks']} ranks, link {first['link']}", box=box.SIMPLE_HEAD)
    table.add_column("contender", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _until_target(group: Sequence[Row], field: str, trained: str, form: str) -> str:
    """Return the median, or from which it is if not all seeds reached the target."""
    if all(row[field] is not None for row in group):
        return form.format(statistics.median(row[field] for row in group))
    return f"> {form.format(statistics.median(row[trained] for row in group))}"
