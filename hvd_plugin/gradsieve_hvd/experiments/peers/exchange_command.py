"""``gradsieve bench exchange``: the command line."""

from __future__ import annotations

from pathlib import Path

import click

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.experiments import options as common
from gradsieve_hvd.launcher.rate import format_rate, parse_rate

from . import exchange_worker, options
from .jobs import Results, measure_on_ranks
from .plan import ExchangePlan
from .predicted import predict
from .tables import a_a_differences, exchange_table, measured_alike

FIELDS = ("link", "ranks", "contender", "step_seconds", "wire_bytes")
"""Without which a row is not one of this measurement."""


@click.command("exchange")
@click.option("--links", default="10mbit,50mbit,100mbit,500mbit,1gbit,none", show_default=True)
@click.option("--ranks", "rank_numbers", default="2,4,8", show_default=True)
@options.contenders()
@options.task()
@options.optimizer()
@options.density()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option(
    "--steps",
    default=4,
    show_default=True,
    type=click.IntRange(1),
    help="In a round, or 10 s; of local-H whole rounds of H.",
)
@click.option(
    "--recorded",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Let each rank record so many gradients and replay them, instead of computing.",
)
@common.timeout()
@common.json_kept()
def bench_exchange(
    links: str,
    rank_numbers: str,
    contenders: str | None,
    task: str,
    optimizer: str,
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
    results = Results(file, FIELDS)
    results.require_alike(task=task, density=density, recorded=bool(recorded))
    names = options.names_of(contenders, optimizer)
    rates = [format_rate(parse_rate(each)) for each in links.split(",")]
    numbers = [_number_of_ranks(each) for each in rank_numbers.split(",")]
    for link in rates:
        for ranks in numbers:
            known = measured_alike(results.rows).get((link, ranks, optimizer), [])
            missing = tuple(name for name in names if name not in {row["contender"] for row in known})
            if not missing:
                continue
            plan = ExchangePlan(
                link=link,
                task=task,
                density=density,
                rows="",
                optimizer=optimizer,
                contenders=missing,
                rounds=rounds,
                steps=steps,
                recorded=recorded,
            )
            measure_on_ranks(exchange_worker.__name__, plan, ranks, timeout, results)
    predict(results.rows)
    results.add([])
    for rows in measured_alike(results.rows).values():
        options.show(exchange_table(rows), a_a_differences(rows, "step_seconds"))


def _number_of_ranks(text: str) -> int:
    try:
        ranks = int(text)
    except ValueError:
        ranks = 0
    if ranks < 1:
        raise ConfigurationError(f"--ranks: {text!r} is not a number of ranks; write 2,4,8")
    return ranks
