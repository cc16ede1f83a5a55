"""The simulator says how long real ranks wait, from what calibrations measured of them."""

from statistics import NormalDist

import pytest

from gradsieve_hvd.experiments.parallel.expected import expected_waiting
from gradsieve_hvd.experiments.parallel.training import waiting_share

FAST, SLOW = 2.0, 8.0
ALIKE = [FAST] * 7 + [SLOW]
NOISE = 0.02  # from iterations that scatter by a twentieth
MODES = ["synchronous", "balanced", "asp", "ssp", "dssp", "dasp", "dasp-equal"]


def calibration(batches=ALIKE, exchange=0.0, scatter=0.05, *, modes=MODES):
    """A row; exchange: seconds of one in which nobody waits."""
    return {"mode": "alone", "ranks": 8, "exchanges": dict.fromkeys(modes, found(batches, exchange, scatter))}


def found(batches, exchange=0.0, scatter=0.05):
    """Each rank's batches are in an order of its own."""
    ratios = [[1 + scatter * each for each in NormalDist().samples(500, seed=rank)] for rank in range(8)]
    return {"batch_seconds": batches, "seconds": [exchange] * 8, "batch_ratios": ratios}


def waiting(mode, *calibrations, seconds=400.0, slow=("7:4x",)):
    row = {"mode": mode, "ranks": 8, "slow": list(slow), "batch": 192, "budget_seconds": seconds}
    return expected_waiting(row, calibrations or [calibration()])


def test_ranks_that_step_together_wait_for_the_slowest():
    assert waiting("synchronous") == pytest.approx(7 / 8 * (1 - FAST / SLOW), abs=NOISE)


def test_an_exchange_without_a_server_is_waiting_of_all_ranks():
    step = SLOW + 2.0
    computing = (7 * FAST + SLOW) / 8
    assert waiting("synchronous", calibration(exchange=2.0)) == pytest.approx(1 - computing / step, abs=NOISE)


def test_an_answer_is_waiting_of_who_pushes():
    shares = [0.5 / (each + 0.5) for each in ALIKE]
    assert waiting("asp", calibration(exchange=0.5)) == pytest.approx(sum(shares) / 8, abs=NOISE)


@pytest.mark.parametrize("mode", MODES)
def test_ranks_are_expected_to_be_as_they_were_in_the_same_mode(mode):
    """Batches and exchanges: a version that is made of many pushes takes another time than one of each."""
    others = calibration([FAST] * 8, exchange=3.0, scatter=0.3)
    others["exchanges"][mode] = found(ALIKE)
    assert waiting(mode, others) == waiting(mode)


@pytest.mark.parametrize("mode", ["balanced", "dasp"])
def test_the_more_batches_scatter_the_longer_ranks_wait_for_the_slowest_of_a_step(mode):
    steady, usual, unsteady = (waiting(mode, calibration(scatter=each)) for each in (0.0, 0.05, 0.15))
    assert steady < usual < unsteady - 0.05


def test_ranks_in_step_wait_for_batches_that_are_rare_but_long():
    """One of a hundred takes three times as long, each rank's in another step: eight steps do."""
    rare = calibration([FAST] * 8)
    for rank, ratios in enumerate(rare["exchanges"]["synchronous"]["batch_ratios"]):
        ratios[:] = [3.0 if number == rank else 1.0 for number in range(100)]
    assert waiting("synchronous", rare) == pytest.approx(1 - 1.02 / 1.16, abs=NOISE)


def test_what_holds_up_all_ranks_of_a_step_has_nobody_wait():
    held_up = calibration([FAST] * 8)
    for ratios in held_up["exchanges"]["synchronous"]["batch_ratios"]:
        ratios[:] = [3.0 if number == 7 else 1.0 for number in range(10)]
    assert waiting("synchronous", held_up) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("slow", ["wander:4x", "transient:3x"])
def test_of_ranks_that_are_slow_in_turns_nothing_is_expected(slow):
    """A calibration may be as short as a turn."""
    assert waiting("synchronous", slow=[slow]) is None
    assert waiting("synchronous", slow=["0:2x", "7:4x"]) == waiting("synchronous")


def test_batches_of_all_calibrations_are_as_likely():
    steady, unsteady = (calibration([FAST] * 8, scatter=each) for each in (0.0, 0.3))
    expected = [waiting("synchronous", *each) for each in ([steady], [unsteady, steady], [unsteady])]
    assert expected[0] + 0.05 < expected[1] < expected[2] - 0.05


def test_of_several_calibrations_the_medians_count():
    usual, odd = calibration(scatter=0.0), calibration([SLOW] * 8, scatter=0.0)
    assert waiting("synchronous", usual, odd, usual) == waiting("synchronous", usual)


def test_extra_iterations_are_for_the_fastest_so_that_ranks_a_little_slower_wait_longer():
    """Only whoever leads all others is given some: see `DynamicStale`."""
    slower = calibration([1.1 * FAST] * 3 + [FAST] * 4 + [SLOW])
    assert waiting("dssp", slower, seconds=150.0) > waiting("dssp", seconds=150.0) + 0.03
    assert waiting("ssp", slower, seconds=150.0) == pytest.approx(waiting("ssp", seconds=150.0), abs=0.03)


@pytest.mark.parametrize("mode", ["local", "auto"])
def test_of_a_mode_without_a_policy_nothing_is_expected(mode):
    assert waiting(mode) is None


@pytest.mark.parametrize("mode", MODES)
def test_without_what_is_to_be_measured_nothing_is_expected(mode):
    others = [each for each in MODES if each != mode]
    assert waiting(mode, calibration(modes=others)) is None
    assert waiting(mode, {"mode": "alone", "ranks": 8}) is None  # an earlier version's


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
