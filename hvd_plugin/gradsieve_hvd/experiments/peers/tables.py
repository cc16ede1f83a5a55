"""Tables of what was measured, one per link and number of ranks. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.table import Table

from gradsieve_hvd.launcher.rate import parse_rate

from .contenders import CHOOSING, base_name
from .optimizers import TASKS_OWN
from .plan import Row

LARGEST_A_A_DIFFERENCE = 0.08  # above it a table is undecided
_MILLI, _KILO, _BITS = 1e3, 1e3, 8


def exchange_table(rows: Sequence[Row]) -> Table:
    """What a step takes, of one link and number of ranks; where ``auto`` is among the contenders also what
    each takes more or less than it, round by round, as machines become faster and slower in between.
    """
    computing = rows[0]["compute_seconds"]
    table = _table(
        rows,
        "step ms",
        "predicted",
        "spread",
        "beside auto",
        "beyond computing ms",
        "bytes alone ms",
        "sent kB",
        "user ms",
        "system ms",
    )
    rate = parse_rate(rows[0]["link"])
    auto = next((row for row in rows if row["contender"] == CHOOSING), None)
    for row in rows:
        table.add_row(
            row["contender"],
            f"{row['step_seconds'] * _MILLI:,.0f}",
            f"{row['predicted_seconds'] * _MILLI:,.0f}" if "predicted_seconds" in row else "-",
            f"{row['spread']:.0%}",
            "-" if (more := _beside(row, auto)) is None else f"{more:+.1%}",
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
    for (name, learning_rate), group in _trained_alike(rows).items():
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


def on_links_table(rows: Sequence[Row], link: str) -> Table:
    """What it would take on a slower link, where what a step takes there is known: medians over seeds."""
    table = _table(rows, "rate", "seeds", "steps", "step ms", "seconds", "bytes a sample", link=link)
    known = [row | row["on_links"][link] for row in rows if link in row.get("on_links", {})]
    for (name, learning_rate), group in _trained_alike(known).items():
        shown = [row | {"seconds": row["steps"] * row["step_seconds"]} for row in group]
        table.add_row(
            name,
            f"{learning_rate:g}",
            str(len(group)),
            _until_target(shown, "steps_to_target", "steps", "{:,.0f}"),
            f"{group[0]['step_seconds'] * _MILLI:,.0f}",
            _until_target(shown, "seconds_to_target", "seconds", "{:,.0f}"),
            f"{group[0]['bytes_per_sample']:,.0f}",
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


def _beside(row: Row, other: Row | None) -> float | None:
    """Return by which part of another's step one takes longer, the median over rounds; None if not known."""
    if other is None or other is row or not row.get("rounds") or not other.get("rounds"):
        return None
    ours: list[float] = row["rounds"]
    theirs: list[float] = other["rounds"]
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True)) - 1


def measured_alike(rows: Iterable[Row]) -> dict[tuple[str, int, str], list[Row]]:
    """Return rows in groups that stand in one table, by link, ranks and optimizer (the task's own in rows of
    before there were others), in the order in which they were measured.
    """
    groups: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["link"], row["ranks"], row.get("optimizer", TASKS_OWN)), []).append(row)
    return groups


def _table(rows: Sequence[Row], *columns: str, link: str = "") -> Table:
    first = rows[0]
    optimizer = first.get("optimizer", TASKS_OWN)
    trained = first["task"] if optimizer == TASKS_OWN else f"{first['task']} with {optimizer}"
    table = Table(
        title=f"{trained}, {first['ranks']} ranks, link {link or first['link']}", box=box.SIMPLE_HEAD
    )
    table.add_column("contender", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _trained_alike(rows: Iterable[Row]) -> dict[tuple[str, float], list[Row]]:
    groups: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["contender"], row["learning_rate"]), []).append(row)
    return groups


def _until_target(group: Sequence[Row], field: str, trained: str, form: str) -> str:
    """Return the median, or from which it is if not all seeds reached the target."""
    if all(row[field] is not None for row in group):
        return form.format(statistics.median(row[field] for row in group))
    return f"> {form.format(statistics.median(row[trained] for row in group))}"
