"""``gradsieve bench exchange`` and ``gradsieve bench train``: the command line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.launcher.rate import format_rate, parse_rate

from . import exchange_worker, train_worker
from .contenders import CONTENDERS, base_name
from .jobs import Results, measure_on_ranks
from .plan import ExchangePlan, TrainPlan
from .predicted import predict
from .tables import a_a_differences, by_link_and_ranks, exchange_table, train_table

_PLAIN_WIDTH = 120  # of a log file
_TASKS = click.Choice(["charlm", "charlm-small", "digits"])
_CONTENDERS = ",".join([*CONTENDERS, "allgather#2"])
_JSON = partial(
    click.option,
    "--json",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all figures here. What it holds already is not measured again.",
)
_contenders = partial(
    click.option,
    "--contenders",
    default=_CONTENDERS,
    show_default=True,
    help="With #2 and so on behind its name one is measured again: how far two of a kind differ.",
)
_density = partial(
    click.option,
    "--density",
    default=0.01,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="Kept / all; int4 keeps three times as much.",
)
_timeout = partial(
    click.option,
    "--timeout",
    type=float,
    metavar="SECONDS",
    help="End ranks that take longer; with status 1.",
)


@click.command("exchange")
@click.option("--links", default="10mbit,50mbit,100mbit,500mbit,1gbit,none", show_default=True)
@click.option("--ranks", "rank_numbers", default="2,4,8", show_default=True)
@_contenders()
@click.option("--task", default="charlm", show_default=True, type=_TASKS)
@_density()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option("--steps", default=4, show_default=True, type=click.IntRange(1), help="In a round, or 10 s.")
@click.option(
    "--recorded",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Let each rank record so many gradients and replay them, instead of computing.",
)
@_timeout()
@_JSON()
def bench_exchange(
    links: str,
    rank_numbers: str,
    contenders: str,
    task: str,
    density: float,
    rounds: int,
    steps: int,
    recorded: int,
    timeout: float | None,
    file: Path | None,
) -> None:
    """Measure a training step by every contender on ranks behind links, in turns.

    Ranks are processes on emulated hosts of this machine and share its cores. Bytes are what their
    interfaces send, less Horovod's idle chatter. Beside each step of gradsieve's own paths stands what
    `gradsieve advise` predicts of it.
    """
    results = Results(file)
    names = _names(contenders)
    for link in (format_rate(parse_rate(each)) for each in links.split(",")):
        for ranks in map(int, rank_numbers.split(",")):
            known = by_link_and_ranks(results.rows).get((link, ranks), [])
            missing = tuple(name for name in names if name not in {row["contender"] for row in known})
            if not missing:
                continue
            plan = ExchangePlan(
                link=link,
                task=task,
                density=density,
                rows="",
                contenders=missing,
                rounds=rounds,
                steps=steps,
                recorded=recorded,
            )
            measure_on_ranks(exchange_worker.__name__, plan, ranks, timeout, results)
    predict(results.rows)
    results.add([])
    for rows in by_link_and_ranks(results.rows).values():
        _show(exchange_table(rows), a_a_differences(rows, "step_seconds"))


@click.command("train")
@click.option("--task", default="charlm", show_default=True, type=_TASKS)
@click.option("--link", default="100mbit", show_default=True)
@click.option("--ranks", default=4, show_default=True, type=click.IntRange(1))
@click.option("--until", type=float, required=True, help="Loss or accuracy on held-out data to reach.")
@click.option("--max-steps", default=400, show_default=True, type=click.IntRange(1))
@click.option("--evaluate-steps", default=5, show_default=True, type=click.IntRange(1))
@_contenders()
@_density()
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--first-seed", default=0, show_default=True, type=click.IntRange(0))
@click.option(
    "--rates",
    "rates_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='JSON with learning rates by contender, {"ddp": 0.1}; of a list each is trained. Else the task\'s.',
)
@_timeout()
@_JSON()
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw the metric over seconds.")
def bench_train(
    task: str,
    link: str,
    ranks: int,
    until: float,
    max_steps: int,
    evaluate_steps: int,
    contenders: str,
    density: float,
    seeds: int,
    first_seed: int,
    rates_file: Path | None,
    timeout: float | None,
    file: Path | None,
    plot: Path | None,
) -> None:
    """Train by every contender until a loss or accuracy is reached, and compare the seconds.

    Trainings follow one another, all contenders of a seed before the next seed's. Time of evaluations is not
    counted.
    """
    results, rate = Results(file), format_rate(parse_rate(link))
    rates = json.loads(rates_file.read_text()) if rates_file is not None else {}
    finished = {
        (row["contender"], row["seed"], row["learning_rate"])
        for row in by_link_and_ranks(results.rows).get((rate, ranks), [])
    }
    trainings = [
        (name, seed, learning_rate)
        for seed in range(first_seed, first_seed + seeds)
        for name in _names(contenders)
        for learning_rate in _rates_of(rates, name)
    ]
    missing = tuple(each for each in trainings if not _is_finished(each, finished))
    if missing:
        plan = TrainPlan(
            link=rate,
            task=task,
            density=density,
            rows="",
            trainings=missing,
            until=until,
            most_steps=max_steps,
            evaluate_steps=evaluate_steps,
        )
        measure_on_ranks(train_worker.__name__, plan, ranks, timeout, results)
    for rows in by_link_and_ranks(results.rows).values():
        _show(train_table(rows), a_a_differences(rows, "seconds_to_target"))
    if plot is not None:
        from .plots import plot_training

        plot_training(results.rows, f"{task}, {ranks} ranks, {rate} each", plot)


def _names(contenders: str) -> list[str]:
    names = contenders.split(",")
    unknown = [name for name in names if base_name(name) not in CONTENDERS]
    if unknown:
        raise ConfigurationError(
            f"--contenders: {', '.join(unknown)} not known; there are {', '.join(CONTENDERS)}"
        )
    return names


def _rates_of(rates: dict[str, float | list[float]], name: str) -> list[float | None]:
    chosen = rates.get(base_name(name))
    return [*chosen] if isinstance(chosen, list) else [chosen]


def _is_finished(training: tuple[str, int, float | None], finished: Iterable[tuple[str, int, float]]) -> bool:
    """Whether there is a row of a training; without a rate of its own, at any rate."""
    name, seed, rate = training
    return any(each[:2] == (name, seed) and rate in (None, each[2]) for each in finished)


def _show(table: Table, remarks: Iterable[str]) -> None:
    console = Console()
    (console if console.is_terminal else Console(width=_PLAIN_WIDTH)).print(table)
    for remark in remarks:
        click.echo(remark)
