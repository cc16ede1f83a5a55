"""What command lines have in common: options of one meaning, and a console for their tables."""

from __future__ import annotations

import json as json_format
import math
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console

from gradsieve.codec import ValueDtype
from gradsieve.errors import ConfigurationError


class FiniteRange(click.FloatRange):
    """A range of numbers without NaN, which lies in every range of click's, and without infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; a usage error if it is not one in the range."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class FileToWrite(click.Path):
    """A path of a file that can be written when all is measured, which may be hours later."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; a usage error if there is no folder for it."""
        file: Any = super().convert(value, param, ctx)
        if not file.parent.is_dir():
            self.fail(f"{file}: there is no folder {file.parent}; make it first", param, ctx)
        return file


class PlotToWrite(FileToWrite):
    """A path of a plot, of which is known before all is measured that it can be drawn."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; see `FileToWrite`.

        Raises:
            ModuleNotFoundError: what draws is missing.
        """
        import_module("matplotlib")
        return super().convert(value, param, ctx)


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
    type=FileToWrite(),
    help="Write all figures here.",
)
json_kept = partial(json, help="Write all figures here. What it holds already is not measured again.")


def read_object(file: Path, option: str, example: str) -> dict[str, Any]:
    """Return what a file holds.

    Raises:
        ConfigurationError: that is not a JSON object, such as ``example``.
    """
    try:
        content = json_format.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{option} {file}: cannot be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{option} {file}: is not an object, such as {example}")
    return content


def is_rate(value: object) -> bool:
    """Return whether a value is a learning rate."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def console(width: int) -> Console:
    """Return a console that is so wide where it is no terminal, as in a log file."""
    made = Console()
    return made if made.is_terminal else Console(width=width)
