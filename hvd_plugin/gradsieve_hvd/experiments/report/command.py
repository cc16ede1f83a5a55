"""``gradsieve report``: the command line."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import click
import torch
from rich.console import Console

from gradsieve import Compression
from gradsieve_hvd.experiments import options

from .figures import all_figures, tables
from .layered import train_layered
from .task import SampledDigits
from .training import Report, train

_LEAST, _MOST = 0.001, 0.1  # the layered rule's usual bounds of a layer's density
_ADAPT_STEPS = 20  # its usual 100 are more than half of a default run


@click.group(name="report")
def command() -> None:
    """Show what gradients of real training look like, and what the methods make of them."""


@command.command("gradients")
@click.option("--epochs", default=16, show_default=True, type=click.IntRange(1))
@options.density()
@click.option("--seed", default=0, show_default=True, type=int)
@click.option(
    "--out",
    default="report",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the plots.",
)
@options.json()
def report_gradients(epochs: int, density: float, seed: int, out: Path, file: Path | None) -> None:
    """Train the digits model with the Laplace rule and look at its gradients.

    How far fresh and accumulated gradients are from a Laplace and from a normal distribution; what the rule
    asks and keeps; thresholds and densities by layer; the samples' losses, and whether the largest of them
    stand for the batch.
    """
    from .plots import PLOTS  # before minutes of training, as it may be missing

    task = SampledDigits()
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    steps = epochs * task.steps_per_epoch
    with Console(stderr=True).status("training") as status:
        report = train(Compression.laplace(density), steps, seed, status.update, task)
        layered = Compression.layered(
            density, bounds=(min(_LEAST, density), max(_MOST, density)), adapt_steps=_ADAPT_STEPS
        )
        report.layered = train_layered(layered, steps, seed, status.update, task)
    conditions = f"digits, {epochs} epoch(s), {steps} steps, Laplace rule at {density:g}, seed {seed}"
    for name, plot in PLOTS.items():
        plot(report, conditions, out / name)
    _show(report, conditions)
    if file is not None:
        versions = {
            "torch": torch.__version__,
            "machine": platform.machine(),
            "python": platform.python_version(),
        }
        setting = {"epochs": epochs, "steps": steps, "density": density, "seed": seed}
        figures = {"versions": versions, "setting": setting} | all_figures(report)
        file.write_text(json.dumps(figures, indent=1) + "\n")
        click.echo(f"Written: {file}")
    click.echo(f"Written to {out}: {', '.join(PLOTS)}")


def _show(report: Report, conditions: str) -> None:
    console = Console()
    console.print(conditions, highlight=False)
    for table in tables(report):
        console.print(table)
    click.echo("Distances: medians of epochs' last steps. Guess: what reaches the estimate.")
    click.echo("Counts, passes: as the rule asks; the kernel answers some from what it noted.")
    click.echo(f"Losses in nats. Test accuracy at the end: {100 * report.accuracy:.1f} %.")
