"""Tables of modes on real ranks. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table

from gradsieve_hvd.experiments.peers.contenders import ALONE
from gradsieve_hvd.experiments.peers.plan import Row
from gradsieve_hvd.optimizer.served import SERVED

from .contenders import CONTENDERS, SIMULATED_AS
from .expected import expected_waiting

_MILLI, _MEGA = 1e3, 1e6
_SMALLEST_DIFFERENCE = 0.05  # of what is shown
_COLUMNS = (
    "η, momentum",
    "seeds",
    "seconds",
    "at the end",
    "waiting",
    "simulated",
    "staleness",
    "steps",
    "batch",
    "MB pushed",
    "MB back",
    "MB sent",
)


def modes_table(rows: Sequence[Row]) -> Table:
    """What it took to reach the target, of one set of conditions: medians over seeds, and means of the rest.

    Bytes are those of all ranks. Simulated is what ranks wait; see `expected_waiting`.
    """
    trained = [row for row in rows if row["mode"] != ALONE]
    calibrated = [row for row in rows if row["mode"] == ALONE]
    first = trained[0]
    slow = " ".join(first["slow"]) or "none"
    title = (
        f"{first['task']}, {first['ranks']} ranks, slow: {slow}, link {first['link']}, "
        f"batch {first['batch']}, density {first['density']:g}, {first['metric']} {first['until']:g}"
    )
    if first.get("server_ranks"):
        title += f", weights kept by ranks {', '.join(map(str, first['server_ranks']))}"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("mode", no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    groups: dict[tuple[str, float, float], list[Row]] = {}
    for row in trained:
        groups.setdefault((row["mode"], row["learning_rate"], row["momentum"]), []).append(row)
    for (mode, rate, momentum), group in groups.items():
        table.add_row(
            mode,
            f"{rate:g}, {momentum:g}",
            str(len(group)),
            _seconds(group),
            f"{statistics.median(row['curve'][-1][1] for row in group):.3f}",
            f"{statistics.mean(row['waiting_share'] for row in group):.2f}",
            _share(expected_waiting(group[0], calibrated)),
            _staleness(group),
            _steps(group),
            _batch(group),
            _megabytes(group, "pushed_bytes"),
            _megabytes(group, "reply_bytes"),
            _megabytes(group, "sent_bytes"),
        )
    return table


def calibrations(rows: Sequence[Row]) -> Iterator[str]:
    """Say what each calibration measured: what a rank's step takes while all compute, and while the others
    wait; what all would take for as many samples, if each had its part by speed and nothing but computing
    took time; and by mode what an exchange takes, where nobody waits for others.

    The simulation of modes with a parameter server is told one such time for all ranks, in batches: the
    median of all calibrations, as a slow rank encodes several times as long, by the median of the batches in
    between.
    """
    answers: dict[str, list[float]] = {}
    batches: dict[str, list[float]] = {}
    for row in rows:
        together = _milliseconds(row["computing_seconds"])
        by_turns = _milliseconds(row["computing_seconds_by_turns"])
        balanced = statistics.harmonic_mean(row["computing_seconds"]) * _MILLI
        yield (
            f"Computing alone, ms by rank: {together} all at once; {by_turns} while the others wait; "
            f"{balanced:.0f} with batches by speed."
        )
        for name, measured in row.get("exchanges", {}).items():  # an earlier version's has none
            served = CONTENDERS[name].mode in SERVED
            if served:
                answers[name] = answers.get(name, []) + measured["seconds"]
                batches[name] = batches.get(name, []) + measured["batch_seconds"]
            what = "A push and its answer" if served else "An exchange"
            least, most = _usual(measured["batch_ratios"])
            yield (
                f"{what} in {name}, ms by rank: {_milliseconds(measured['seconds'])}; nine of ten batches in "
                f"between take {least:.2f} to {most:.2f} of their rank's mean."
            )
    for name, seconds in answers.items():
        share = statistics.median(seconds) / statistics.median(batches[name])
        simulated = f"--mode {SIMULATED_AS.get(name, name)} --answer {share:.2f}"
        yield f"To simulate {name} with such answers: gradsieve simulate modes {simulated}"


def _usual(ratios: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return between what nine of ten are."""
    all_of_them = sorted(each for of_rank in ratios for each in of_rank)
    left_out = len(all_of_them) // 20
    return all_of_them[left_out], all_of_them[-1 - left_out]


def mean_staleness(histogram: Sequence[Sequence[int]]) -> float:
    """Return the releases that an applied gradient has missed, from (releases, gradients)."""
    gradients = sum(number for _, number in histogram)
    return sum(missed * number for missed, number in histogram) / max(gradients, 1)


def _milliseconds(seconds: Sequence[float]) -> str:
    return ", ".join(f"{each * _MILLI:.0f}" for each in seconds)


def _seconds(group: Sequence[Row]) -> str:
    times = [row["seconds_to_target"] for row in group]
    if any(row["diverged"] for row in group):
        return f"{sum(row['diverged'] for row in group)} diverged"
    if None in times:
        return f"> {group[0]['budget_seconds']:g}" if len(times) == 1 else f"{times.count(None)} not reached"
    return f"{statistics.median(times):.1f}"


def _share(known: float | None) -> str:
    return "" if known is None else f"{known:.2f}"


def _staleness(group: Sequence[Row]) -> str:
    known = [row["staleness"] for row in group if row["staleness"] is not None]
    return f"{statistics.mean(map(mean_staleness, known)):.2f}" if known else ""


def _steps(group: Sequence[Row]) -> str:
    """Steps of the ranks that took fewest and most."""
    fewest = statistics.mean(min(row["steps"]) for row in group)
    most = statistics.mean(max(row["steps"]) for row in group)
    return f"{most:.0f}" if fewest == most else f"{fewest:.0f} to {most:.0f}"


def _batch(group: Sequence[Row]) -> str:
    """Samples of a step, the mean of the ranks that had the smallest batches and the largest."""
    of_ranks = [
        [samples / steps for samples, steps in zip(row["samples"], row["steps"], strict=True)]
        for row in group
    ]
    least, most = statistics.mean(map(min, of_ranks)), statistics.mean(map(max, of_ranks))
    return f"{most:.1f}" if most - least < _SMALLEST_DIFFERENCE else f"{least:.1f} to {most:.1f}"


def _megabytes(group: Sequence[Row], field: str) -> str:
    known = [sum(row[field]) for row in group if row[field] is not None]
    return f"{statistics.mean(known) / _MEGA:.1f}" if known else ""
