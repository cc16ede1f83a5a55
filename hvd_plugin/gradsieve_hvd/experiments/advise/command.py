"""``gradsieve advise``: the command line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import get_args

import click
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from gradsieve.codec import ValueDtype
from gradsieve.errors import ConfigurationError
from gradsieve_hvd.choice.costs import Link
from gradsieve_hvd.choice.machine import measure_rates
from gradsieve_hvd.launcher.rate import format_rate, parse_rate

from .prediction import WHOLE, Question, Row, predictions

_MILLI = _KILO = 1e3
_BITS_PER_BYTE = 8
_UNSHAPED_BITS = 4_000_000_000  # what ranks of one machine reach among each other (r)
_PLAIN_WIDTH = 110  # of a log file
_ALIKE = 1.03
_MULTIPLES = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}


@click.command(name="advise")
@click.option("--params", required=True, help="Parameters of the model: 25.6M, 458k, 7B or a plain number.")
@click.option("--ranks", required=True, type=click.IntRange(1), help="Processes that train together.")
@click.option("--link", required=True, help="Rate of each rank's link: 100mbit, 1gbit; none for 4gbit.")
@click.option(
    "--step-ms",
    required=True,
    type=click.FloatRange(0, min_open=True),
    help="A step of one rank without exchanging anything, in milliseconds.",
)
@click.option(
    "--density",
    default=0.01,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="Share of entries that a rank sends.",
)
@click.option("--values", default="float32", show_default=True, type=click.Choice(get_args(ValueDtype)))
@click.option("--rank", default=4, show_default=True, type=click.IntRange(1, 8), help="Columns for lowrank.")
@click.option(
    "--hot",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="Share of all positions from which ranks select: below 1 their supports overlap.",
)
@click.option(
    "--start-up-ms",
    default=0.5,
    show_default=True,
    type=click.FloatRange(0),
    help="Until an empty message has arrived, in milliseconds.",
)
@click.option(
    "--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here."
)
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
    file: Path | None,
) -> None:
    """Say which path is likely to give the shortest steps, without a cluster.

    A prediction: bytes by formula, start-up time and bandwidth as given, selecting and encoding as timed on
    this machine, which takes a second. It says nothing about how well a path trains.
    """
    torch.set_num_threads(1)
    bits = parse_rate(link)
    network = Link(start_up_ms / _MILLI, (bits or _UNSHAPED_BITS) / _BITS_PER_BYTE)
    question = Question(parse_count(params), ranks, step_ms / _MILLI, density, values, hot, rank)
    rates = measure_rates(density=density, value_dtype=values)
    rows = list(predictions(question, network, rates))
    _show(f"{params} parameters, {ranks} ranks, {format_rate(bits)}, computing {step_ms:g} ms", rows)
    for line in conclusion(rows, density, values):
        click.echo(line)
    if file is not None:
        asked = dataclasses.asdict(question) | dataclasses.asdict(network)
        file.write_text(
            json.dumps({"asked": asked, "rates": dataclasses.asdict(rates), "rows": rows}, indent=1) + "\n"
        )
        click.echo(f"Written: {file}")


def parse_count(text: str) -> int:
    """Return the number that ``25.6M``, ``458k``, ``7B`` or ``1000`` mean.

    Raises:
        ConfigurationError: it is not one, or is below 1.
    """
    wanted = text.strip().lower().replace("_", "")
    multiple = _MULTIPLES.get(wanted[-1:], 1.0)
    try:
        count = round(float(wanted[:-1] if multiple > 1 else wanted) * multiple)
    except (ValueError, OverflowError):
        count = 0
    if count < 1:
        raise ConfigurationError(f"--params {text!r} is not understood: write 25.6M, 458k or 25600000")
    return count


def conclusion(rows: list[Row], density: float, values: str) -> list[str]:
    """Return in words what the rows say."""
    best = min(rows, key=lambda row: row["step_seconds"])
    dense = rows[0]
    whole = [row for row in rows if row["path"] in WHOLE]
    simplest = min(whole, key=lambda row: row["step_seconds"])
    faster = f"{best['times_dense']:.1f} times faster than dense"
    if simplest["step_seconds"] <= _ALIKE * best["step_seconds"]:
        first = f"Compression does not pay here: exchange='{simplest['path']}' is as fast as anything."
    else:
        first = f"Predicted fastest: exchange='{best['path']}', {faster}."
    waiting = dense["exposed_seconds"] / dense["step_seconds"]
    return [
        first,
        f"Of a dense step {waiting:.0%} would be waiting for the network.",
        f"A rank selects {100 * density:g} % of all entries and sends them as {values}. Applied are:",
        "allgather and ring all that any rank selects, scatter as many as one rank does.",
        "How well a path trains is another question: docs/methods.md.",
    ]


def _show(title: str, rows: list[Row]) -> None:
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("path", no_wrap=True)
    for name in ("step, ms", "waiting, ms", "selecting etc., ms", "sent, kB", "times dense"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in sorted(rows, key=lambda row: row["step_seconds"]):
        table.add_row(
            row["path"],
            f"{row['step_seconds'] * _MILLI:,.0f}",
            f"{row['exposed_seconds'] * _MILLI:,.0f}",
            f"{row['work_seconds'] * _MILLI:,.1f}",
            f"{row['wire_bytes'] / _KILO:,.0f}",
            f"{row['times_dense']:.1f}",
        )
    console = Console()
    (console if console.is_terminal else Console(width=_PLAIN_WIDTH)).print(table)
