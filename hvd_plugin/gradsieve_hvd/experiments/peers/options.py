"""What the command lines of both measurements have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import click
from rich.table import Table

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.experiments import options as common

from .contenders import CONTENDERS, base_name
from .optimizers import ADAMW_RATE, OPTIMIZERS, TASKS_OWN, why_not

_PLAIN_WIDTH = 120  # of a log file
_TWICE = "allgather#2"

task = partial(
    click.option,
    "--task",
    default="charlm",
    show_default=True,
    type=click.Choice(["charlm", "charlm-small", "digits"]),
)
optimizer = partial(
    click.option,
    "--optimizer",
    default=TASKS_OWN,
    show_default=True,
    type=click.Choice(OPTIMIZERS),
    help=f"The task's own, which is SGD with momentum, or AdamW, whose usual rate is {ADAMW_RATE:g}.",
)


def contenders(default: str = f"all that go with the optimizer, and {_TWICE}") -> Callable[..., Any]:
    """The option --contenders."""
    return click.option(
        "--contenders",
        help="With #2 and so on behind its name one is measured again: how far two of a kind differ.  "
        f"[default: {default}]",
    )


density = partial(common.density, help="Kept / all; int4 keeps three times as much, and local-H has its own.")


def names_of(chosen: str | None, kind: str, usual: Sequence[str] = (*CONTENDERS, _TWICE)) -> list[str]:
    """Return the names of contenders, separated by commas; if none are chosen, the usual ones that go with an
    optimizer.

    Raises:
        ConfigurationError: one does not exist, or cannot be trained with that optimizer.
    """
    if chosen is None:
        return [name for name in usual if why_not(kind, base_name(name)) is None]
    names = chosen.split(",")
    unknown = [name for name in names if base_name(name) not in CONTENDERS]
    if unknown:
        raise ConfigurationError(
            f"--contenders: {', '.join(unknown)} not known; there are {', '.join(CONTENDERS)}"
        )
    for name in names:
        if reason := why_not(kind, base_name(name)):
            raise ConfigurationError(
                f"--contenders: {name} cannot be trained with --optimizer {kind}: {reason}"
            )
    return names


def show(table: Table, remarks: Iterable[str]) -> None:
    """Print a table, and sentences below it."""
    common.console(_PLAIN_WIDTH).print(table)
    for remark in remarks:
        click.echo(remark)
