"""``gradsieve bench``: the command line."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from gradsieve.codec import ValueDtype
from gradsieve_hvd.experiments import options
from gradsieve_hvd.experiments.parallel.commands import bench_modes
from gradsieve_hvd.experiments.peers.exchange_command import bench_exchange
from gradsieve_hvd.experiments.peers.train_command import bench_train

from . import codecs, convergence, convergence_table, exchanges, selection, simulated_bytes

Row = dict[str, Any]
_MILLI = _KILO = 1e3
_PLAIN_WIDTH = 110  # of a log file


@click.group(name="bench")
def command() -> None:
    """Measure selecting, encoding and exchanging on this machine, beside what others do."""


command.add_command(bench_exchange)
command.add_command(bench_modes)
command.add_command(bench_train)


@command.command("selection")
@click.option("--elements", default=25_000_000, show_default=True, type=click.IntRange(1))
@options.density()
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1))
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(1))
@click.option(
    "--gradients", default="recorded", show_default=True, type=click.Choice(list(selection.SOURCES))
)
@options.json()
def bench_selection(
    elements: int, density: float, threads: int, rounds: int, gradients: str, file: Path | None
) -> None:
    """Select from accumulated gradients: gradsieve's rules and what one would write with torch.

    The floor is one pass that reads and writes every element once, with the same threads.
    """
    torch.set_num_threads(threads)
    title = f"{elements:,} elements, density {density:g}, {threads} thread(s), {gradients} gradients"
    with _status(title) as progress:
        rows = list(selection.measure(selection.SOURCES[gradients](), elements, density, rounds, progress))
    setting = {"elements": elements, "density": density, "threads": threads, "gradients": gradients}
    _report(title, _SELECTION_COLUMNS, [row | setting for row in rows], file)


@command.command("codec")
@click.option("--task", default="charlm", show_default=True, type=click.Choice(["charlm", "digits"]))
@click.option("--density", "densities", default=(0.01, 0.001), show_default=True, multiple=True, type=float)
@options.json()
def bench_codec(task: str, densities: tuple[float, ...], file: Path | None) -> None:
    """Encode and decode selections of recorded gradients, one thread, every tensor by itself."""
    torch.set_num_threads(1)
    _report(f"{task}, all tensors", _CODEC_COLUMNS, list(codecs.measure(task, densities)), file)


@command.command("paths")
@click.option(
    "--task", default="digits", show_default=True, type=click.Choice(["digits", "charlm-small", "charlm"])
)
@click.option("--ranks", default=4, show_default=True, type=click.IntRange(2))
@options.density()
@click.option("--steps", default=200, show_default=True, type=click.IntRange(1))
@options.values()
@options.json()
def bench_paths(
    task: str, ranks: int, density: float, steps: int, values: ValueDtype, file: Path | None
) -> None:
    """Train by every path that sparse gradients may take between ranks: bytes, and what they lead to.

    Ranks are threads of this process, so that bytes are real and times are not shown. Bytes are those of the
    rank that sends most.
    """
    torch.set_num_threads(1)
    title = f"{task}, {ranks} ranks, density {density:g}, {steps} steps, {values}"
    with _status(title) as progress:
        rows = list(exchanges.measure(task, ranks, density, steps, values, progress))
    _report(title, _PATH_COLUMNS, rows, file)


@command.command("bytes")
@click.option("--elements", default=6_100_000, show_default=True, type=click.IntRange(1000))
@options.density()
@options.hot()
@options.values()
@options.json()
def bench_bytes(elements: int, density: float, hot: float, values: ValueDtype, file: Path | None) -> None:
    """Say what every path sends with 2 to 256 ranks, without training: bytes of one rank, with headers."""
    setting = simulated_bytes.Setting(elements, density, max(hot, density), values)
    rows = simulated_bytes.rows(setting)
    title = f"kB per step and rank: {elements:,} elements, density {density:g}, {values}"
    columns = [(name, partial(_kilobytes, name)) for name in simulated_bytes.PATHS]
    _report(title, [("ranks", lambda row: str(row["ranks"])), *columns], rows, None)
    for line in simulated_bytes.crossings(setting):
        click.echo(line)
    if file is not None:
        _write(rows, file)
        click.echo(f"Written: {file}")


@command.command("convergence")
@click.option(
    "--task", "tasks", multiple=True, type=click.Choice(list(convergence.SETUPS)), help="Only this task."
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    type=click.Choice(list(convergence.METHODS)),
    help="Only this method, besides dense.",
)
@options.density()
@click.option("--optimizer", default="sgd", show_default=True, type=click.Choice(["sgd", "adamw"]))
@click.option(
    "--learning-rate",
    "rates",
    multiple=True,
    type=options.FiniteRange(0, min_open=True),
    help="Instead of the task's own, or 0.002 for AdamW; several: each is trained.",
)
@click.option(
    "--beta1", default=0.9, show_default=True, type=options.FiniteRange(0, 1, max_open=True), help="AdamW's."
)
@click.option("--min-elements", default=10_000, show_default=True, type=click.IntRange(0))
@options.values()
@click.option(
    "--warmup", type=options.FiniteRange(0, 1), help="Share of the steps, instead of the task's own."
)
@options.seeds()
@options.first_seed()
@click.option("--steps", type=click.IntRange(1), help="Instead of the task's own number, thousands.")
@options.json()
def bench_convergence(
    tasks: tuple[str, ...],
    methods: tuple[str, ...],
    density: float,
    rates: tuple[float, ...],
    seeds: int,
    first_seed: int,
    file: Path | None,
    **training: Any,
) -> None:
    """Train to the end by every method, on simulated ranks: results, bytes, and what selections kept.

    Adaptive methods are compared with exact top-k at the density whose payloads are as many bytes. With AdamW
    there is no momentum correction. One training takes minutes; FILE is written after each.
    """
    torch.set_num_threads(1)
    rows: list[Row] = []
    chosen = methods or tuple(convergence.METHODS)
    setups = [
        (task, convergence.setup_of(task, learning_rate=rate, **training))
        for task in tasks or tuple(convergence.SETUPS)
        for rate in rates or (None,)
    ]
    with _status("training") as progress:
        for seed in range(first_seed, first_seed + seeds):
            for task, setup in setups:
                for row in convergence.measure(task, setup, density, seed, chosen, progress):
                    rows.append(row)
                    if file is not None:
                        _write(rows, file)
    rows.sort(key=lambda row: list(convergence.SETUPS).index(row["task"]))
    options.console(_PLAIN_WIDTH).print(convergence_table.table(rows))
    click.echo("Accuracy in %, loss in nats per character. Behind: points of accuracy, % of loss.")
    click.echo("method = adaptive method: fixed density whose payloads are as many bytes.")
    if file is not None:
        click.echo(f"Written: {file}")


_NAMES = ("method", "path", "values")
_Column = tuple[str, Callable[[Row], str]]
_SELECTION_COLUMNS: Sequence[_Column] = (
    ("method", lambda row: str(row["method"])),
    ("ms", lambda row: f"{row['seconds'] * _MILLI:.1f}"),
    ("median", lambda row: f"{row['median_seconds'] * _MILLI:.1f}"),
    ("first", lambda row: f"{row['fresh_seconds'] * _MILLI:.1f}"),
    ("x floor", lambda row: f"{row['seconds'] / row['floor_seconds']:.1f}"),
    ("kept/k", lambda row: f"{row['kept_ratio']:.2f}"),
    ("energy", lambda row: f"{row['relative_energy']:.3f}"),
    ("extra B", lambda row: f"{row['extra_bytes'] / row['elements']:.1f}"),
)
_CODEC_COLUMNS: Sequence[_Column] = (
    ("values", lambda row: str(row["codec"])),
    ("density", lambda row: f"{row['density']:g}"),
    ("bytes", lambda row: f"{row['bytes_per_kept']:.2f}"),
    ("encode ns", lambda row: f"{row['encode_seconds'] / row['kept'] * 1e9:.1f}"),
    ("decode ns", lambda row: f"{row['decode_seconds'] / row['kept'] * 1e9:.1f}"),
)
_PATH_COLUMNS: Sequence[_Column] = (
    ("path", lambda row: str(row["path"])),
    ("kB/step", lambda row: f"{row['bytes_per_step'] / _KILO:.1f}"),
    ("dense/path", lambda row: f"{row['dense_bytes_per_step'] / row['bytes_per_step']:.1f}"),
    ("applied", lambda row: f"{row['applied_share']:.2%}"),
    ("result", lambda row: f"{row['result']:.3f}"),
)


def _kilobytes(name: str, row: Row) -> str:
    return f"{row[name] / _KILO:,.0f}"


class _status:  # noqa: N801 - used like rich's own status()
    """Progress on standard error while it runs; quiet where nobody watches."""

    def __init__(self, title: str) -> None:
        self._status = Console(stderr=True).status(title)
        self._title = title

    def __enter__(self) -> Callable[[str], None]:
        self._status.start()
        return lambda message: self._status.update(f"{self._title}: {message}")

    def __exit__(self, *error: object) -> None:
        self._status.stop()


def _report(title: str, columns: Iterable[_Column], rows: Sequence[Row], file: Path | None) -> None:
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for name, _ in columns:
        table.add_column(name, justify="left" if name in _NAMES else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(show(row) for _, show in columns))
    options.console(_PLAIN_WIDTH).print(table)
    if "floor_seconds" in rows[0]:
        click.echo(
            f"Milliseconds: least, median, first step; the floor is {rows[0]['floor_seconds'] * _MILLI:.1f}."
        )
        click.echo("Energy: share of the squared norm sent.")
        click.echo("Extra: bytes per element beside gradient and residual.")
    elif "path" in rows[0]:
        click.echo(
            f"Bytes with headers. k: {rows[0]['density']:g} of all entries. Result: {rows[0]['metric']}."
        )
    elif "kept" in rows[0]:
        click.echo("Bytes (headers included), nanoseconds: per kept entry.")
    if file is not None:
        _write(rows, file)
        click.echo(f"Written: {file}")


def _write(rows: Sequence[Row], file: Path) -> None:
    versions = {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    file.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")
