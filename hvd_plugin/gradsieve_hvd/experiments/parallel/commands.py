"""``gradsieve bench modes``: the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.experiments import options
from gradsieve_hvd.experiments.peers.contenders import ALONE
from gradsieve_hvd.experiments.peers.jobs import Results, measure_on_ranks
from gradsieve_hvd.experiments.peers.plan import Row
from gradsieve_hvd.experiments.tasks import TASKS
from gradsieve_hvd.launcher.link import parse_link
from gradsieve_hvd.launcher.stragglers import parse_straggler

from . import worker
from .contenders import CONTENDERS
from .plan import ModesPlan, Training, conditions, usual_settings
from .tables import calibrations, modes_table

Setting = dict[str, float]
_PLAIN_WIDTH = 170  # of a log file


@click.command("modes")
@click.option("--task", default="charlm-small", show_default=True, type=click.Choice(list(TASKS)))
@click.option("--ranks", default=4, show_default=True, type=click.IntRange(2))
@click.option(
    "--slow",
    help="Ranks that compute slower, separated by commas, as in gradsieve run.  [default: the last one, 4x]",
)
@click.option("--link", default="none", show_default=True, help="As in gradsieve run.")
@click.option(
    "--mode",
    "modes",
    default=",".join(CONTENDERS),
    show_default=True,
    help="Separated by commas. dasp-equal is dasp with batches of one size.",
)
@click.option(
    "--until", type=options.FiniteRange(), required=True, help="Loss or accuracy on held-out data to reach."
)
@click.option(
    "--seconds", default=30.0, show_default=True, type=options.FiniteRange(1), help="Of each training."
)
@click.option(
    "--judge-seconds",
    default=2.0,
    show_default=True,
    type=options.FiniteRange(0.1),
    help="From one judgement of the weights to the next.",
)
@click.option(
    "--batch", type=click.IntRange(1), help="Samples of a rank's nominal batch.  [default: the task's]"
)
@options.density(help="Of gradients; 1 sends them whole. local has its own.")
@click.option(
    "--server-ranks",
    help="Those that keep weights in modes with a parameter server, separated by commas.  [default: all]",
)
@options.seeds(default=1)
@options.first_seed()
@options.rates(
    help='JSON by mode, {"asp": {"learning_rate": 0.5, "momentum": 0}}; of a list each is trained. Else the '
    "task's, for all modes.",
)
@options.timeout()
@options.json_kept()
def bench_modes(
    task: str, ranks: int, slow: str | None, link: str, modes: str, until: float, seconds: float,
    judge_seconds: float, batch: int | None, density: float, server_ranks: str | None, seeds: int,
    first_seed: int, rates_file: Path | None, timeout: float | None, file: Path | None,
) -> None:  # fmt: skip
    """Train in every parallel mode on ranks of which some are slow, and compare the seconds to a target.

    Ranks are processes on emulated hosts of this machine, each with a quota of its processor. Weights are
    copied on rank 0 while it trains, and judged afterwards.
    """
    results = Results(file)
    rates = _read_rates(rates_file) if rates_file is not None else {}
    stragglers = [parse_straggler(each) for each in (slow or f"{ranks - 1}:4x").split(",")]
    trained = TASKS[task]()
    plan = ModesPlan(
        link=str(parse_link(link)), task=task, density=density, rows="",
        slow=tuple(map(str, stragglers)), batch=batch or trained.batch, trainings=(), until=until,
        budget_seconds=seconds, judge_seconds=judge_seconds, server_ranks=_ranks(server_ranks, ranks),
    )  # fmt: skip
    where = conditions(plan, ranks)
    missing = missing_trainings(
        _known(modes),
        range(first_seed, first_seed + seeds),
        rates,
        usual_settings(trained),
        _measured_at(where, results.rows),
    )
    if missing:
        plan = replace(plan, trainings=missing)
        measure_on_ranks(worker.__name__, plan, ranks, timeout, results, stragglers)
    rows = _measured_at(where, results.rows)
    options.console(_PLAIN_WIDTH).print(modes_table(rows))
    for said in calibrations([row for row in rows if row["mode"] == ALONE]):
        click.echo(said)


def _measured_at(where: Row, rows: list[Row]) -> list[Row]:
    """Return the rows of these conditions; what an older one does not tell is taken as alike."""
    return [row for row in rows if all(row.get(name, where[name]) == where[name] for name in where)]


def _read_rates(file: Path) -> dict[str, Setting | list[Setting]]:
    example = '{"asp": {"learning_rate": 0.5, "momentum": 0}}'
    rates: dict[str, Setting | list[Setting]] = options.read_object(file, "--rates", example)
    for mode, chosen in rates.items():
        if mode not in CONTENDERS:
            known = ", ".join(CONTENDERS)
            raise ConfigurationError(f"--rates {file}: {mode} is not known; there are {known}")
        if not _as_list(chosen) or not all(map(_is_setting, _as_list(chosen))):
            raise ConfigurationError(
                f"--rates {file}: {mode} has {chosen}; give a learning_rate above 0, a momentum from 0 to "
                f"below 1, or both, as in {example}, or a list of such"
            )
    return rates


def _is_setting(value: object) -> bool:
    if not isinstance(value, dict) or not value.keys() <= {"learning_rate", "momentum"}:
        return False
    momentum = value.get("momentum", 0)
    known = (options.is_rate(momentum) and momentum < 1) or (momentum == 0 and momentum is not False)
    return known and options.is_rate(value.get("learning_rate", 1.0))


def missing_trainings(
    modes: Sequence[str],
    seeds: Iterable[int],
    rates: Mapping[str, Setting | list[Setting]],
    usual: tuple[float, float],
    rows: Iterable[Row],
) -> tuple[Training, ...]:
    """Return what is to be trained: all modes of a seed before the next seed's, but for what there are rows
    of.

    rates: by mode. usual: learning rate and momentum where none are given. rows: measured alike.
    """
    finished = {
        (row["mode"], row["seed"], row["learning_rate"], row["momentum"])
        for row in rows
        if row["mode"] != ALONE
    }
    wanted = [
        (mode, seed, each.get("learning_rate", usual[0]), each.get("momentum", usual[1]))
        for seed in seeds
        for mode in modes
        for each in _as_list(rates.get(mode, {}))
    ]
    return tuple(training for training in wanted if training not in finished)


def _as_list(settings: Setting | list[Setting]) -> list[Setting]:
    return settings if isinstance(settings, list) else [settings]


def _ranks(text: str | None, ranks: int) -> tuple[int, ...] | None:
    if text is None:
        return None
    numbers = text.split(",")
    if wrong := [each for each in numbers if not (each.isdecimal() and int(each) < ranks)]:
        raise ConfigurationError(f"--server-ranks: {', '.join(wrong)} not among the ranks 0 to {ranks - 1}")
    return tuple(sorted(set(map(int, numbers))))


def _known(modes: str) -> list[str]:
    names = modes.split(",")
    unknown = [name for name in names if name not in CONTENDERS]
    if unknown:
        raise ConfigurationError(f"--mode: {', '.join(unknown)} not known; there are {', '.join(CONTENDERS)}")
    return names
