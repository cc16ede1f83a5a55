"""The simulator says how long real ranks wait, from what calibrations measured of them."""

import math
from statistics import NormalDist

import pytest

from gradsieve_hvd.experiments.parallel.expected import expected_waiting
from gradsieve_hvd.experiments.parallel.training import scatter, waiting_share

FAST, SLOW = 2.0, 8.0
ALIKE = [FAST] * 7 + [SLOW]
NOISE = 0.02  # from iterations that scatter by a twentieth
NORMAL = NormalDist(0.0, 0.1).samples(500, seed=0)

ANSWERED = ["asp", "ssp", "dssp", "dasp-equal"]


def calibration(batches=ALIKE, answer=0.0, exchange=0.0, scatter=0.05):
    return {
        "mode": "alone", "ranks": 8, "computing_seconds": batches, "exchange_seconds": exchange,
        "batch_scatter": scatter, "answers": {mode: answered(batches, answer, scatter) for mode in ANSWERED},
    }  # fmt: skip


def answered(batches, answer, scatter=0.05):
    return {"batch_seconds": batches, "seconds": [answer] * 8, "batch_scatter": scatter}


def waiting(mode, *calibrations, seconds=400.0):
    row = {"mode": mode, "ranks": 8, "batch": 192, "budget_seconds": seconds}
    return expected_waiting(row, calibrations or [calibration()])


def test_ranks_that_step_together_wait_for_the_slowest():
    assert waiting("synchronous") == pytest.approx(7 / 8 * (1 - FAST / SLOW), abs=NOISE)


def test_an_exchange_without_a_server_is_waiting_of_all_ranks():
    step = SLOW + 2.0
    computing = (7 * FAST + SLOW) / 8
    assert waiting("synchronous", calibration(exchange=2.0)) == pytest.approx(1 - computing / step, abs=NOISE)


def test_an_answer_is_waiting_of_who_pushes():
    shares = [0.5 / (each + 0.5) for each in ALIKE]
    assert waiting("asp", calibration(answer=0.5)) == pytest.approx(sum(shares) / 8, abs=NOISE)


def test_modes_with_a_server_are_simulated_with_batches_that_were_computed_while_it_answered():
    found = calibration() | {"answers": {"ssp": answered([FAST] * 8, 0.0)}}
    assert waiting("ssp", found) < 0.1 < 0.5 < waiting("synchronous", found)


@pytest.mark.parametrize("mode", ["dasp", "dasp-equal"])
def test_an_answer_is_expected_to_take_what_it_took_in_the_same_mode(mode):
    """Where a version is made of many pushes, another time than where one is made of each."""
    found = calibration() | {"answers": {"asp": answered(ALIKE, 2.0), "dasp-equal": answered(ALIKE, 0.2)}}
    assert waiting(mode, found) == waiting(mode, calibration(answer=0.2))
    assert waiting("asp", found) == waiting("asp", calibration(answer=2.0))


@pytest.mark.parametrize("mode", ["balanced", "dasp"])
def test_the_more_batches_scatter_the_longer_ranks_wait_for_the_slowest_of_a_step(mode):
    steady, usual, unsteady = (waiting(mode, calibration(scatter=each)) for each in (0.0, 0.05, 0.15))
    assert steady < usual < unsteady - 0.05


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        pytest.param([[2.0, 2.0, 2.0], [8.0, 8.0]], 0.0, id="none, however uneven ranks are"),
        pytest.param(
            [[2.0 * math.e**each for each in NORMAL] + [60.0] * 5], 0.1, id="a tenth, but for a few"
        ),
        pytest.param([[2.0]], 0.0, id="unknown"),
    ],
)
def test_batches_scatter_about_the_median_of_their_rank(batches, expected):
    assert scatter(batches) == pytest.approx(expected, rel=0.05)


def test_of_several_calibrations_the_medians_count():
    odd = calibration([SLOW] * 8)
    assert waiting("synchronous", calibration(), odd, calibration()) == waiting("synchronous")


def test_extra_iterations_are_for_the_fastest_so_that_ranks_a_little_slower_wait_longer():
    """Only whoever leads all others is given some: see `DynamicStale`."""
    slower = calibration([1.1 * FAST] * 3 + [FAST] * 4 + [SLOW])
    assert waiting("dssp", slower, seconds=150.0) > waiting("dssp", seconds=150.0) + 0.03
    assert waiting("ssp", slower, seconds=150.0) == pytest.approx(waiting("ssp", seconds=150.0), abs=0.03)


@pytest.mark.parametrize("mode", ["local", "auto"])
def test_of_a_mode_without_a_policy_nothing_is_expected(mode):
    assert waiting(mode) is None


@pytest.mark.parametrize(("mode", "unknown"), [("balanced", "batch_scatter"), ("asp", "answers")])
def test_without_what_is_to_be_measured_nothing_is_expected(mode, unknown):
    found = calibration()
    del found[unknown]
    assert waiting(mode, found) is None


@pytest.mark.parametrize(
    ("computing", "stepping", "over", "share"),
    [
        pytest.param([3.0, 3.0], [1.0, 1.0], 0.0, 0.25, id="of all seconds"),
        pytest.param([3.0, 3.0], [1.0, 5.0], 4.0, 0.25, id="the last wait ends when time is up"),
        pytest.param([3.0, 6.0], [1.0, 1.0], 4.0, 1 / 7, id="as does the last batch"),
        pytest.param([], [], 1.0, 0.0, id="no step but the first"),
    ],
)
def test_of_a_last_step_what_comes_after_the_end_does_not_count(computing, stepping, over, share):
    assert waiting_share(computing, stepping, over) == pytest.approx(share)
