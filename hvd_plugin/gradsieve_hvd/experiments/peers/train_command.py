"""``gradsieve bench train``: the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.experiments import options as common
from gradsieve_hvd.experiments.tasks import TASKS
from gradsieve_hvd.launcher.rate import format_rate, parse_rate

from . import options, train_worker
from .contenders import CONTENDERS, base_name, steps_together
from .exchange_command import FIELDS as TIMED_FIELDS
from .jobs import Results, measure_on_ranks, read_rows
from .on_links import add_links, links_known
from .optimizers import usual_rate
from .plan import Row, Training, TrainPlan
from .reaching import Target
from .tables import a_a_differences, measured_alike, on_links_table, train_table

_USUAL = (
    *("horovod", "horovod-fp16", "ddp", "ddp-fp16", "powersgd-1", "powersgd-2", "powersgd-4", "dgc"),
    *("dropin", "allgather", "ring", "scatter", "int4", "lowrank", "lowrank-bf16", "auto", "lowrank-bf16#2"),
)
"""What there is to compare, and no more than is trained in some 35 minutes."""
_FIELDS = ("link", "ranks", "contender", "seed", "learning_rate")


@click.command("train")
@options.task()
@options.optimizer()
@click.option("--link", default="100mbit", show_default=True)
@click.option("--ranks", default=4, show_default=True, type=click.IntRange(1))
@click.option(
    "--until",
    required=True,
    metavar="VALUE|CONTENDER@STEPS",
    help="Loss or accuracy on held-out data to reach; dense@2000 is what dense has after 2000 steps, with "
    "the same seed.",
)
@click.option("--max-steps", default=120, show_default=True, type=click.IntRange(1))
@click.option("--evaluate-steps", default=5, show_default=True, type=click.IntRange(1))
@options.contenders(", ".join(_USUAL))
@options.density()
@common.seeds(default=2)
@common.first_seed()
@common.rates(
    help='JSON with learning rates by contender, {"ddp": 0.1}; of a list each is trained. Else the '
    "optimizer's usual one.",
)
@click.option(
    "--step-times",
    "timed_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of gradsieve bench exchange: also say how long it would have taken on its links.",
)
@common.timeout()
@common.json_kept()
@click.option(
    "--plot",
    type=common.PlotToWrite(),
    help="Draw the metric over seconds, with --step-times over those on its links, too.",
)
def bench_train(
    task: str, optimizer: str, link: str, ranks: int, until: str, max_steps: int, evaluate_steps: int,
    contenders: str | None, density: float, seeds: int, first_seed: int, rates_file: Path | None,
    timed_file: Path | None, timeout: float | None, file: Path | None, plot: Path | None,
) -> None:  # fmt: skip
    """Train by every contender until a loss or accuracy is reached, and compare the seconds.

    Trainings follow one another, all contenders of a seed before the next seed's. Time of evaluations is not
    counted. On links that are too slow to train on, train with --link none and give --step-times.
    """
    results, rate = Results(file, _FIELDS), format_rate(parse_rate(link))
    rates = _read_rates(rates_file) if rates_file is not None else {}
    target = Target.parse(until)
    timed = None
    if timed_file is not None:
        timed = read_rows(timed_file, "--step-times", (*TIMED_FIELDS, "task", "optimizer"))
    results.require_alike(task=task, density=density)
    if target.value is not None:
        results.require_alike(until=target.value)
    others = [name for name in CONTENDERS if name == target.contender and name not in _USUAL]
    names = options.names_of(contenders, optimizer, (*others, *_USUAL))
    usual = usual_rate(optimizer, TASKS[task]())
    _require_common_weights(names, evaluate_steps)
    trainings = [
        (name, seed, learning_rate)
        for seed in range(first_seed, first_seed + seeds)
        for name in sorted(names, key=lambda name: name != target.contender)
        for learning_rate in _rates_of(rates, name, usual)
    ]
    _require_one_target(target, trainings, seeds, evaluate_steps)
    known = measured_alike(results.rows).get((rate, ranks, optimizer), [])
    missing = tuple(each for each in trainings if not _has_row(each, known))
    found = tuple(row for row in known if row["contender"] == target.contender)
    for row in found:
        target.of(row["seed"], [row])  # before ranks start, who would see it, too
    if missing:
        plan = TrainPlan(
            link=rate, task=task, density=density, rows="", optimizer=optimizer, trainings=missing,
            until=until, found=found, most_steps=max_steps, evaluate_steps=evaluate_steps,
        )  # fmt: skip
        measure_on_ranks(train_worker.__name__, plan, ranks, timeout, results)
    if timed is not None:
        add_links(results.rows, timed, TASKS[task]().batch)
        results.add([])
    for rows in measured_alike(results.rows).values():
        options.show(train_table(rows), a_a_differences(rows, "seconds_to_target"))
        for slow in links_known(rows):
            options.show(on_links_table(rows, slow), ())
    if plot is not None:
        from .plots import plot_training

        rows = measured_alike(results.rows)[rate, ranks, optimizer]
        plot_training(rows, f"{task}, {ranks} ranks, {rate} each", plot)


def _read_rates(file: Path) -> dict[str, float | list[float]]:
    rates: dict[str, float | list[float]] = common.read_object(file, "--rates", '{"ddp": 0.1}')
    for name, chosen in rates.items():
        if base_name(name) not in CONTENDERS:
            raise ConfigurationError(
                f"--rates {file}: {name} is not known; there are {', '.join(CONTENDERS)}"
            )
        listed = chosen if isinstance(chosen, list) else [chosen]
        if not listed or not all(map(common.is_rate, listed)):
            raise ConfigurationError(
                f"--rates {file}: {name} has {chosen}; give a finite number above 0, or a list of them"
            )
    return rates


def _rates_of(rates: dict[str, float | list[float]], name: str, usual: float) -> list[float]:
    chosen = rates.get(name, rates.get(base_name(name), usual))
    return [*chosen] if isinstance(chosen, list) else [chosen]


def _has_row(training: Training, rows: Iterable[Row]) -> bool:
    return any((row["contender"], row["seed"], row["learning_rate"]) == training for row in rows)


def _require_common_weights(names: Iterable[str], evaluate_steps: int) -> None:
    for name in names:
        if evaluate_steps % steps_together(name):
            raise ConfigurationError(
                f"--evaluate-steps {evaluate_steps}: ranks have the same weights only after every "
                f"{steps_together(name)} steps of {name}; take a multiple"
            )


def _require_one_target(
    target: Target, trainings: Sequence[Training], seeds: int, evaluate_steps: int
) -> None:
    if target.value is not None:
        return
    if sum(name == target.contender for name, _, _ in trainings) != seeds:
        raise ConfigurationError(
            f"--until {target.contender}@{target.steps}: {target.contender} must be among "
            "--contenders, once and with one learning rate"
        )
    if target.steps < 1 or target.steps % evaluate_steps:
        raise ConfigurationError(
            f"--until {target.contender}@{target.steps}: not a multiple of --evaluate-steps {evaluate_steps}"
        )
