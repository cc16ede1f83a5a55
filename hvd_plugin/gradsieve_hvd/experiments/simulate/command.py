"""``gradsieve simulate``: the command line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from gradsieve_hvd.experiments import options

from .modes.rows import SIMULATED, Cell, Measured, comparisons, measure, table_rows
from .modes.stragglers import SCENARIOS
from .modes.tasks import MODE_TASKS
from .modes.timeline import LOCAL, local_rounds, played
from .plots import plot_timeline, plot_times

_PLAIN_WIDTH = 110  # of a log file


@click.group(name="simulate")
def command() -> None:
    """Try on a virtual clock what would take a cluster."""


def _names(known: Sequence[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    def parse(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
        names = value.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise click.BadParameter(f"{unknown[0]!r} is not one of {', '.join(known)}", context, parameter)
        return names

    return parse


@command.command("modes")
@click.option("--task", default="digits", show_default=True, type=click.Choice(list(MODE_TASKS)))
@click.option("--workers", default=8, show_default=True, type=click.IntRange(1))
@click.option(
    "--scenario",
    "scenarios",
    default="even,slow4,wander,transient,mixed",
    show_default=True,
    callback=_names(list(SCENARIOS)),
    help=f"Any of {', '.join(SCENARIOS)}, separated by commas.",
)
@click.option(
    "--mode",
    "modes",
    default=",".join(SIMULATED),
    show_default=True,
    callback=_names(list(SIMULATED)),
    help="Separated by commas.",
)
@click.option(
    "--density",
    "densities",
    multiple=True,
    default=(1.0, 0.01),
    show_default=True,
    type=options.FiniteRange(0, 1, min_open=True),
    help="Of pushes. Can be repeated.",
)
@click.option("--seeds", default=24, show_default=True, type=click.IntRange(2))
@click.option("--tuning-seeds", default=4, show_default=True, type=click.IntRange(1))
@click.option(
    "--no-retuning", is_flag=True, help="Every mode gets the learning rate and momentum tuned for BSP."
)
@click.option(
    "--horizon",
    default=1000.0,
    show_default=True,
    type=options.FiniteRange(0, min_open=True),
    help="Virtual time after which runs are ended.",
)
@click.option(
    "--answer",
    default=0.0,
    show_default=True,
    type=options.FiniteRange(0),
    help="Virtual time that a push and its answer take where no mode has a worker wait; `gradsieve bench "
    "modes` measures it.",
)
@click.option("--processes", default=2, show_default=True, type=click.IntRange(1))
@options.json()
@click.option("--plot", type=options.PlotToWrite(), help="Draw times to the target, by scenario and mode.")
def simulate_modes(
    task: str, workers: int, scenarios: list[str], modes: list[str], densities: tuple[float, ...], seeds: int,
    tuning_seeds: int, no_retuning: bool, horizon: float, answer: float, processes: int, file: Path | None,
    plot: Path | None,
) -> None:  # fmt: skip
    """Train in every parallel mode on a virtual clock, with real gradients and played stragglers.

    Seconds are virtual: 1 is what a nominal batch takes on a nominal worker. Learning rate and momentum of
    each mode are tuned by the same rule, on seeds of their own.
    """
    cells = [
        Cell(task, workers, scenario, mode, density, seeds, tuning_seeds, horizon, answer)
        for density in densities
        for scenario in scenarios
        for mode in modes
    ]
    console = options.console(_PLAIN_WIDTH)
    with Console(stderr=True).status(f"{task}, {workers} workers") as status:
        measured = []
        for each in _measured(_without_retuning(cells) if no_retuning else cells, processes):
            measured.append(each)
            status.update(f"{len(measured)} of {len(cells)}: {each.cell.scenario}, {each.cell.mode}")
    rows = table_rows(measured)
    _show(console, measured, rows)
    if file is not None:
        content = {"rows": rows, "comparisons": comparisons(measured)}
        file.write_text(json.dumps(content, indent=1) + "\n")
        click.echo(f"Written: {file}")
    if plot is not None:
        plot_times(rows, f"{task}, {workers} workers", plot)
        click.echo(f"Written: {plot}")


@command.command("timeline")
@click.option("--mode", default="dasp", show_default=True, type=click.Choice([*SIMULATED, LOCAL]))
@click.option("--scenario", default="slow4", show_default=True, type=click.Choice(list(SCENARIOS)))
@click.option("--workers", default=4, show_default=True, type=click.IntRange(1))
@click.option(
    "--horizon", default=16.0, show_default=True, type=options.FiniteRange(0, min_open=True),
    help="Virtual time that is drawn; 1 is a nominal batch on a nominal worker.",
)  # fmt: skip
@options.first_seed()
@click.option("--plot", required=True, type=options.PlotToWrite())
def simulate_timeline(
    mode: str, scenario: str, workers: int, horizon: float, first_seed: int, plot: Path
) -> None:
    """Draw who computes and who waits in a mode, and when new weights are made."""
    timeline = local_rounds if mode == LOCAL else partial(played, SIMULATED[mode])
    plot_timeline(timeline(SCENARIOS[scenario], workers, horizon, first_seed), mode, plot)
    click.echo(f"Written: {plot}")


def _without_retuning(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells with the setting that is tuned for BSP in their place."""
    found = {}
    for cell in cells:
        place = (cell.scenario, cell.density)
        if place not in found:
            found[place] = measure(replace(cell, mode="synchronous", seeds=1)).setting
    return [replace(cell, setting=found[cell.scenario, cell.density]) for cell in cells]


def _measured(cells: Sequence[Cell], processes: int) -> Iterator[Measured]:
    if processes == 1:
        yield from map(measure, cells)
        return
    # For torch and numpy, which read it when a child loads them: each would have a thread per core.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Spawned: a forked child would inherit the threads' locks of torch.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(measure, cells)


def _show(console: Console, measured: Sequence[Measured], rows: Sequence[dict[str, Any]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    names = (
        "scenario",
        "density",
        "mode",
        "seconds",
        "95 %",
        "η",
        "momentum",
        "waiting",
        "stale",
        "efficiency",
    )
    for name in names:
        table.add_column(name, justify="left" if name in {"scenario", "mode"} else "right")
    for each, row in zip(measured, rows, strict=True):
        table.add_row(*_texts(row, sum(not math.isfinite(s) for s in each.seconds)))
    console.print(table)
    for found in comparisons(measured):
        where = f"{found['scenario']}, density {found['density']:g}"
        against = f"{found['mode']} against {found['against']}, the best baseline"
        size = f"{found['change']:+.1%} ({found['low']:+.1%} to {found['high']:+.1%})"
        console.print(f"{where}: {against}: {size}", highlight=False)


def _texts(row: dict[str, Any], failed: int) -> list[str]:
    seconds = f"{failed} of {row['seeds']} failed" if failed else f"{row['seconds']:.1f}"
    return [
        row["scenario"],
        f"{row['density']:g}",
        row["mode"],
        seconds,
        "" if failed else f"{row['low']:.0f}-{row['high']:.0f}",
        f"{row['learning_rate']:.3g}",
        f"{row['momentum']:g}",
        f"{row['waiting_share']:.2f}",
        f"{row['staleness_mean']:.2f}",
        "" if row["efficiency"] is None else f"{row['efficiency']:.2f}",
    ]
