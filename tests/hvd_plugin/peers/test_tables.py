"""Tables of measurements say what a difference means, and what was not reached."""

import statistics

import pytest
from printed_tables import printed

from gradsieve_hvd.experiments.peers.tables import a_a_differences, exchange_table, train_table


def row(contender, seconds, seed=0, reached=True):
    return {
        "link": "100mbit",
        "ranks": 4,
        "task": "charlm",
        "contender": contender,
        "seed": seed,
        "learning_rate": 0.1,
        "steps": 100,
        "seconds": seconds,
        "steps_to_target": 100 if reached else None,
        "seconds_to_target": seconds if reached else None,
        "step_seconds": seconds / 100,
        "bytes_per_step": 1e6,
    }


@pytest.mark.parametrize(("other", "undecided"), [(107.0, False), (109.0, True)])
def test_a_pair_that_differs_too_much_leaves_its_table_undecided(other, undecided):
    (said,) = a_a_differences([row("ddp", 100.0), row("dgc", 5.0), row("ddp#2", other)], "seconds_to_target")
    assert ("undecided" in said) == undecided


def test_a_pair_is_compared_by_its_medians_over_seeds():
    seeds = [
        row(name, seconds, seed) for name in ("a", "a#2") for seed, seconds in enumerate([1.0, 2.0, 9.0])
    ]
    (said,) = a_a_differences(seeds, "seconds_to_target")
    assert "0.0%" in said


def test_a_target_that_one_seed_missed_is_a_lower_bound():
    shown = printed(train_table([row("ddp", 50.0), row("ddp", 90.0, 1, reached=False), row("int4", 30.0)]))
    assert "> 70.0" in shown
    assert "30.0" in shown


def timed(contender, rounds):
    return row(contender, 1.0) | {
        "compute_seconds": 0.5,
        "step_seconds": statistics.median(rounds),
        "rounds": rounds,
        "spread": 0.0,
        "wire_bytes": 1e6,
        "user_seconds": 0.1,
        "system_seconds": 0.1,
    }


def test_steps_are_compared_with_autos_round_by_round():
    """A machine that slows down in between tells nothing of medians: both have 2.0 here."""
    shown = printed(exchange_table([timed("ring", [1.1, 2.0, 4.4]), timed("auto", [1.0, 2.0, 4.0])]))
    assert "+10.0%" in shown
    assert "+0.0%" not in shown


def test_rows_without_rounds_are_shown_all_the_same():
    old = timed("ring", [1.0])
    del old["rounds"]
    assert "ring" in printed(exchange_table([old, timed("auto", [1.0])]))
