"""``gradsieve advise``: the command line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import torch
from rich import box
from rich.table import Table

from gradsieve.codec import ValueDtype
from gradsieve.errors import ConfigurationError
from gradsieve_hvd.choice.machine import measure_rates
from gradsieve_hvd.experiments import options
from gradsieve_hvd.launcher.rate import format_rate, parse_rate
from gradsieve_hvd.launcher.stragglers import Straggler, parse_straggler

from .modes import modes
from .prediction import APPLIED, START_UP_SECONDS, UNSHAPED_BITS, WHOLE, Question, Row, link_of, predictions

_MILLI = _KILO = 1e3
_PLAIN_WIDTH = 110  # of a log file
_ALIKE = 1.03
_MOST_PARAMETERS = 10**12
_MULTIPLES = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}


@click.command(name="advise")
@click.option("--params", required=True, help="Parameters of the model: 25.6M, 458k, 7B or a plain number.")
@click.option("--ranks", required=True, type=click.IntRange(1, 1024), help="Processes that train together.")
@click.option(
    "--link", required=True, help="Rate of each rank's link: 100mbit, 1gbit; none for ranks of one machine."
)
@click.option(
    "--step-ms",
    required=True,
    type=options.FiniteRange(0, min_open=True),
    help="A step without exchanging anything, in milliseconds, while all ranks take one.",
)
@options.density(help="Share of entries that a rank sends.")
@options.values()
@click.option("--rank", default=4, show_default=True, type=click.IntRange(1, 8), help="Columns for lowrank.")
@options.hot()
@click.option(
    "--start-up-ms",
    default=_MILLI * START_UP_SECONDS,
    show_default=True,
    type=options.FiniteRange(0),
    help="Until an empty message has arrived, in milliseconds.",
)
@click.option(
    "--tensors",
    default=0,
    type=click.IntRange(0),
    help="Tensors of the model that are compressed; 0, the default, for one in a million elements.",
)
@click.option(
    "--small-params",
    default="0",
    help="Parameters in tensors that are too small to be compressed (below 10,000), beside --params.",
)
@click.option(
    "--ranks-per-core",
    default=1.0,
    show_default=True,
    type=options.FiniteRange(1),
    help="Ranks that share a core, and wait for each other's selecting and adding.",
)
@click.option(
    "--slow",
    "slow",
    multiple=True,
    metavar="WHO:FACTOR",
    help="Uneven ranks, as of `gradsieve run`: 3:4x, wander:4x, transient:3x; may be repeated.",
)
@options.json()
def command(
    params: str,
    ranks: int,
    link: str,
    step_ms: float,
    density: float,
    values: ValueDtype,
    rank: int,
    hot: float,
    start_up_ms: float,
    tensors: int,
    small_params: str,
    ranks_per_core: float,
    slow: tuple[str, ...],
    file: Path | None,
) -> None:
    """Say which path is likely to give the shortest steps, without a cluster.

    A prediction: bytes by formula, start-up time and bandwidth as given, selecting and encoding as timed on
    this machine, which takes a second. It says nothing about how well a path trains.
    """
    torch.set_num_threads(1)
    stragglers = _stragglers(slow, ranks)
    bits = parse_rate(link)
    network = link_of(bits, start_up_ms / _MILLI)
    question = Question(
        parse_count(params),
        ranks,
        step_ms / _MILLI,
        density,
        values,
        hot,
        rank,
        tensors,
        ranks_per_core,
        0 if small_params == "0" else parse_count(small_params),
    )
    rates = measure_rates(density=density, value_dtype=values)
    rows = list(predictions(question, network, rates))
    rate = f"unshaped ({format_rate(UNSHAPED_BITS)} assumed)" if bits is None else format_rate(bits)
    _show(f"{params} parameters, {ranks} ranks, {rate}, computing {step_ms:g} ms", rows)
    for line in conclusion(rows, density, values):
        click.echo(line)
    by_mode = list(modes(question, stragglers, network, rates))
    _show_modes(by_mode, slow)
    if file is not None:
        asked = dataclasses.asdict(question) | dataclasses.asdict(network)
        file.write_text(
            json.dumps(
                {
                    "asked": asked | {"slow": list(map(str, stragglers))},
                    "rates": dataclasses.asdict(rates),
                    "rows": rows,
                    "modes": by_mode,
                },
                indent=1,
            )
            + "\n"
        )
        click.echo(f"Written: {file}")


def parse_count(text: str) -> int:
    """Return the number that ``25.6M``, ``458k``, ``7B`` or ``1000`` mean.

    Raises:
        ConfigurationError: it is not one, is below 1, or above what any model has.
    """
    wanted = text.strip().lower().replace("_", "")
    multiple = _MULTIPLES.get(wanted[-1:], 1.0)
    try:
        count = round(float(wanted[:-1] if multiple > 1 else wanted) * multiple)
    except (ValueError, OverflowError):
        count = 0
    if count < 1:
        raise ConfigurationError(f"--params {text!r} is not understood: write 25.6M, 458k or 25600000")
    if count > _MOST_PARAMETERS:
        raise ConfigurationError(f"--params {text!r}: are more than {_MOST_PARAMETERS:,} really meant?")
    return count


def _stragglers(slow: Sequence[str], ranks: int) -> list[Straggler]:
    """Return what ``--slow`` stands for.

    Raises:
        ConfigurationError: it is not understood, or names a rank that there is not.
    """
    found = [parse_straggler(text) for text in slow]
    for each in found:
        if isinstance(each.who, int) and each.who >= ranks:
            raise ConfigurationError(f"--slow {each}: there are ranks 0 to {ranks - 1}")
    return found


def conclusion(rows: list[Row], density: float, values: str) -> list[str]:
    """Return in words what the rows say: first what is fastest, then the fastest of each other kind."""
    dense = rows[0]
    fastest = [
        (min((row for row in rows if row["path"] in paths), key=_seconds), applied)
        for applied, paths in APPLIED.items()
    ]
    fastest.sort(key=lambda kind: _seconds(kind[0]))
    best = fastest[0][0]
    whole = [row for row in rows if row["path"] in WHOLE and _seconds(row) <= _ALIKE * _seconds(best)]
    if whole:  # the first of them that is as fast loses least
        lines = [f"Compression does not pay here: exchange='{whole[0]['path']}' is as fast as anything."]
        others = [kind for kind in fastest if kind[0]["path"] not in WHOLE]
    else:
        lines, others = [f"Predicted fastest: {_described(*fastest[0])}"], fastest[1:]
    lines += [f"Otherwise: {_described(row, applied)}" for row, applied in others]
    return [
        *lines,
        f"Of a dense step {dense['exposed_seconds'] / dense['step_seconds']:.0%} would be waiting.",
        f"A rank selects {100 * density:g} % of all entries and sends them as {values}.",
        "Lines differ in what is applied, so time is not all: how well a path trains stands in",
        "docs/methods.md.",
    ]


def _seconds(row: Row) -> float:
    return float(row["step_seconds"])


def _described(row: Row, applied: str) -> str:
    rounded = " rounded to 16 bits" if row["path"] in WHOLE[1:] else ""
    return (
        f"exchange='{row['path']}', {row['times_dense']:.1f} times dense's speed; applies {applied}{rounded}."
    )


def _show_modes(rows: list[dict[str, Any]], slow: Sequence[str]) -> None:
    among = f"ranks of which {', '.join(slow)}" if slow else "even ranks"
    table = _table(f"Parallel modes among {among}", "mode", "step, ms", "efficiency", "time to a loss")
    for row in sorted(rows, key=lambda row: row["times_synchronous"]):
        table.add_row(
            row["mode"],
            f"{row['step_seconds'] * _MILLI:,.0f}",
            f"{row['efficiency']:.2f}",
            f"{row['times_synchronous']:.2f}",
        )
    _print(table)
    click.echo(
        "A time to a loss is that of synchronous training times what is shown; efficiencies are those of"
    )
    click.echo(
        "docs/modes.md, from small trainings. local sends once in 15 steps; balanced needs a DynamicSampler."
    )


def _show(title: str, rows: list[Row]) -> None:
    names = ("step, ms", "waiting, ms", "selecting etc., ms", "sent, kB", "times dense")
    table = _table(title, "path", *names)
    for row in sorted(rows, key=lambda row: row["step_seconds"]):
        table.add_row(
            row["path"],
            f"{row['step_seconds'] * _MILLI:,.0f}",
            f"{row['exposed_seconds'] * _MILLI:,.0f}",
            f"{row['work_seconds'] * _MILLI:,.1f}",
            f"{row['wire_bytes'] / _KILO:,.0f}",
            f"{row['times_dense']:.1f}",
        )
    _print(table)


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _print(table: Table) -> None:
    options.console(_PLAIN_WIDTH).print(table)
