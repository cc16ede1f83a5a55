"""What command lines have in common: options of one meaning, and a console for their tables."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console

from gradsieve.codec import ValueDtype


class FiniteRange(click.FloatRange):
    """A range of numbers without NaN, which lies in every range of click's, and without infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; a usage error if it is not one in the range."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


density = partial(
    click.option, "--density", default=0.01, show_default=True, type=FiniteRange(0, 1, min_open=True)
)
values = partial(
    click.option, "--values", default="float32", show_default=True, type=click.Choice(get_args(ValueDtype))
)
hot = partial(
    click.option,
    "--hot",
    default=1.0,
    show_default=True,
    type=FiniteRange(0, 1, min_open=True),
    help="Share of all positions from which ranks select: below 1 their supports overlap.",
)
seeds = partial(click.option, "--seeds", default=3, show_default=True, type=click.IntRange(1))
first_seed = partial(click.option, "--first-seed", default=0, show_default=True, type=click.IntRange(0))
rates = partial(
    click.option, "--rates", "rates_file", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
timeout = partial(
    click.option,
    "--timeout",
    type=FiniteRange(0, min_open=True),
    metavar="SECONDS",
    help="End ranks that take longer; with status 1.",
)
json = partial(
    click.option,
    "--json",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all figures here.",
)
json_kept = partial(json, help="Write all figures here. What it holds already is not measured again.")


def console(width: int) -> Console:
    """Return a console that is so wide where it is no terminal, as in a log file."""
    made = Console()
    return made if made.is_terminal else Console(width=width)
