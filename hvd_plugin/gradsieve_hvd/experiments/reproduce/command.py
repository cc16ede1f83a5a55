"""``gradsieve reproduce``: the command line."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import click
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from gradsieve_hvd.experiments import options
from gradsieve_hvd.experiments.tasks import TASKS

from .finding import Finding, Reproduction, Verdict

_PLAIN_WIDTH = 110  # of a log file
_STYLES: dict[Verdict, str] = {"holds": "green", "holds more strongly": "bold green", "not here": "yellow"}


@click.command("reproduce")
@click.option(
    "--claim",
    "claims",
    multiple=True,
    type=click.Choice(["A", "E"]),
    help="Only this paper's. Can be repeated.",
)
@options.seeds(help="Trainings of each kind.")
@click.option("--quick", is_flag=True, help="A fraction of the work: shows that all works, not how well.")
@options.json()
@click.option(
    "--plot",
    type=options.PlotToWrite(),
    help="Draw claim A's accuracies by bytes sent into this file.",
)
def command(claims: tuple[str, ...], seeds: int, quick: bool, file: Path | None, plot: Path | None) -> None:
    """Put the papers' headline claims to the test, and say what came out.

    A: layered adaptive compression (accuracy, bytes to an accuracy). E: Laplace threshold (speed against
    radix and hierarchical selection). Papers measured elsewhere; a verdict is about the conditions here. It
    follows from the figure: the JSON file says from which figure a claim holds.
    """
    from .claims import CLAIMS
    from .plots import plot_accuracy_by_bytes

    TASKS["digits"]()  # needs scikit-learn: better known now than after minutes
    torch.set_num_threads(1)
    console = options.console(_PLAIN_WIDTH)
    made: dict[str, Reproduction] = {}
    for letter in claims or tuple(CLAIMS):
        claim = CLAIMS[letter]
        with Console(stderr=True).status(claim.title) as status:
            made[letter] = claim.reproduce(seeds, status.update, quick=quick)
        _show(console, f"{claim.title}: {claim.source}", made[letter])
        if file is not None:
            _write(file, made, quick=quick)
    if quick:
        click.echo("--quick: far too little work for the verdicts to mean anything.")
    if file is not None:
        click.echo(f"Written: {file}")
    if plot is not None and "A" in made:
        plot_accuracy_by_bytes(made["A"].measurements["trainings"], made["A"].setting, plot)
        click.echo(f"Written: {plot}")


def _show(console: Console, title: str, made: Reproduction) -> None:
    console.rule(title)
    console.print(made.setting, highlight=False)
    for table in made.tables:
        console.print(table)
    verdicts = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for name in ("the paper", "condition here", "figure here", "verdict"):
        verdicts.add_column(name, justify="right" if name == "figure here" else "left")
    for finding in made.findings:
        verdicts.add_row(finding.says, finding.condition, finding.shown, _verdict(finding))
    console.print(verdicts)


def _verdict(finding: Finding) -> str:
    style = _STYLES[finding.verdict]
    return f"[{style}]{finding.verdict}[/{style}]"


def _write(file: Path, made: dict[str, Reproduction], *, quick: bool) -> None:
    versions = {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    rows = [{"claim": letter} | finding.row() for letter, each in made.items() for finding in each.findings]
    content = {
        "versions": versions,
        "quick": quick,
        "settings": {letter: each.setting for letter, each in made.items()},
        "rows": rows,
        "measurements": {letter: dict(each.measurements) for letter, each in made.items()},
    }
    file.write_text(json.dumps(content, indent=1) + "\n")
