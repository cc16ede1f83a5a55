"""What a coordinator expects is believed as far as what it has measured allows, and else worked out here."""

import dataclasses
import math

import pytest

from gradsieve_operator.adapt import Asked, Change, Memory, Plan, Window, Work, adapt, read_window
from gradsieve_operator.adapt.expected import step_seconds, time_to_loss
from gradsieve_operator.adapt.promised import Promised, read_promised
from gradsieve_operator.spec import Adaptation

COMPUTING = {"Synchronous": 0.4, "Balanced": 0.2, "Local": 0.4, "Adaptive": 0.16}
EXCHANGE = [{"factor": factor, "seconds": 0.05 + 0.01 * (factor - 1)} for factor in (0.25, 1.0, 4.0)]
HARMONIC, DELAY = 0.15, 0.05
WORK = Work(harmonic=HARMONIC, paced=0.16, slowest=0.4, peak=0.4)
WINDOW = Window(0, 32, 64.0, 1.0, 0.45, 0.01, DELAY, WORK, "worker-1", bandwidth_seconds=0.02)
NOW = Plan("Synchronous", 20)


def read(computing=COMPUTING, exchange=EXCHANGE):
    return read_promised({"computingSeconds": computing, "exchange": exchange}, HARMONIC, DELAY)


def promising(**more):
    return dataclasses.replace(WINDOW, promised=read(**more))


def test_what_is_served_is_read():
    assert read() == Promised(COMPUTING, ((0.25, 0.0425), (1.0, 0.05), (4.0, 0.08)))


def test_other_modes_take_what_the_coordinator_expects_and_the_present_one_what_it_takes():
    window = promising()
    assert step_seconds(Plan("Balanced", 20), NOW, window) == pytest.approx(0.2 + DELAY)
    assert step_seconds(Plan("Adaptive", 20), NOW, window) == pytest.approx(0.16 + DELAY)
    assert step_seconds(NOW, NOW, window) == pytest.approx(0.45)


@pytest.mark.parametrize(
    ("density", "seconds"),
    [(20, 0.05), (80, 0.08), (40, 0.06), (50, 0.065), (5, 0.0425), (1, 0.0425), (1000, 0.08)],
)
def test_other_densities_take_what_it_expects_on_straight_lines_in_between(density, seconds):
    found = step_seconds(Plan("Synchronous", density), NOW, promising())
    assert found == pytest.approx(0.45 - DELAY + seconds)


def test_rounds_of_local_steps_exchange_seldomer():
    assert step_seconds(Plan("Local", 20, 5), NOW, promising()) == pytest.approx(0.4 + DELAY / 5)


def test_without_a_word_of_it_the_operator_expects_what_it_works_out_itself():
    assert step_seconds(Plan("Balanced", 20), NOW, WINDOW) == pytest.approx(HARMONIC + DELAY)
    assert step_seconds(Plan("Synchronous", 40), NOW, WINDOW) == pytest.approx(0.45 + 0.02)


@pytest.mark.parametrize("value", [None, "0.2", True, -1, math.nan, math.inf, 1e7, [0.2], HARMONIC / 2])
def test_a_time_that_cannot_be_takes_all_of_its_kind_with_it(value):
    found = read(computing={**COMPUTING, "Balanced": value})
    assert (found.computing, bool(found.exchange)) == ({}, True)


def test_a_mode_that_nobody_knows_is_ignored():
    assert read(computing={**COMPUTING, "Psychic": 0.0}).computing == COMPUTING


@pytest.mark.parametrize(
    "exchange",
    [
        pytest.param(None, id="nothing"),
        pytest.param([], id="empty"),
        pytest.param("111", id="text"),
        pytest.param([3, 4], id="numbers"),
        pytest.param([{"factor": 1.0}], id="no seconds"),
        pytest.param([{"factor": 1.0, "seconds": math.inf}], id="for ever"),
        pytest.param([{"factor": True, "seconds": DELAY}], id="no factor"),
        pytest.param([EXCHANGE[0], EXCHANGE[2]], id="not as now"),
        pytest.param([{"factor": 1.0, "seconds": 9.0}], id="now takes something else"),
        pytest.param([*EXCHANGE, EXCHANGE[0]], id="not ascending"),
        pytest.param([*EXCHANGE, {"factor": 8.0, "seconds": 0.01}], id="more takes less"),
        pytest.param([*EXCHANGE, *({"factor": 5.0 + n, "seconds": 1.0} for n in range(40))], id="too many"),
    ],
)
def test_exchanges_that_cannot_be_are_not_believed(exchange):
    assert read(exchange=exchange) == Promised(COMPUTING)


@pytest.mark.parametrize("found", [None, [], "fast", 3, {}, {"computingSeconds": [], "exchange": {}}])
def test_an_earlier_or_broken_coordinator_promises_nothing_and_its_window_is_read(found):
    served = {
        "samples": 5,
        "seconds": 9.0,
        "stepSeconds": 0.45,
        "stepDeviation": 0.0,
        "delaySeconds": DELAY,
        "work": dataclasses.asdict(WORK),
        "expected": found,
    }
    assert read_window(served, 1.0).promised == Promised()


def wish(**more):
    adaptation = Adaptation(enabled=True, interval=0, cooldown=0, min_samples=5)
    modes = ("Synchronous", "Balanced")
    return Asked(plan=NOW, choose_mode=True, modes=modes, adaptation=adaptation, **more)


def test_a_mode_whose_shares_would_not_help_is_not_chosen_although_means_look_as_if_they_would():
    found = adapt(WINDOW, wish(), Memory(), 1000.0)
    assert isinstance(found, Change)
    assert found.plan.mode == "Balanced"
    jitter = promising(computing={**COMPUTING, "Balanced": 0.39})
    assert not isinstance(adapt(jitter, wish(), Memory(), 1000.0), Change)


def test_the_best_that_can_be_promised_changes_nothing_beyond_what_the_author_allows():
    lies = promising(
        computing=dict.fromkeys(COMPUTING, HARMONIC),
        exchange=[{"factor": 0.001, "seconds": 0.0}, {"factor": 1.0, "seconds": DELAY}],
    )
    found = adapt(lies, wish(lowest_permille=10, highest_permille=30), Memory(), 1000.0)
    assert found.memory.plan is not None
    assert found.memory.plan.mode in ("Synchronous", "Balanced")
    assert 10 <= (found.memory.plan.density_permille or 0) <= 30
    assert time_to_loss(found.memory.plan, NOW, lies) > 0
