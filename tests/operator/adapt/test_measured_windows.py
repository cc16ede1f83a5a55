"""A coordinator's window is read field by field, and what it cannot be is refused."""

import math

import pytest

from gradsieve_operator.adapt import Window, Work, read_window
from gradsieve_operator.errors import SpecError

SERVED = {
    "planGeneration": 3,
    "samples": 32,
    "seconds": 64.0,
    "stepSeconds": 0.2,
    "stepDeviation": 0.01,
    "delaySeconds": 0.05,
    "work": {"harmonic": 0.1, "paced": 0.11, "slowest": 0.14, "peak": 0.15},
    "slowestHost": "worker-1",
}


def served(**changed):
    work = {**SERVED["work"], **changed.pop("work", {})}
    return {**SERVED, "work": work, **changed}


def test_a_window_is_read_as_it_is_served():
    window = read_window(SERVED, 1.5)
    assert window == Window(
        3, 32, 64.0, 1.5, 0.2, 0.01, 0.05, Work(harmonic=0.1, paced=0.11, slowest=0.14, peak=0.15), "worker-1"
    )
    assert window.flaw() == ""


@pytest.mark.parametrize("value", [None, "1", True, -1, math.nan, math.inf, 1e300, [1]], ids=repr)
def test_a_time_that_is_none_is_refused_by_its_name(value):
    with pytest.raises(SpecError, match=r"window\.delaySeconds"):
        read_window(served(delaySeconds=value), 1.5)
    with pytest.raises(SpecError, match=r"window\.work\.peak"):
        read_window(served(work={"peak": value}), 1.5)


@pytest.mark.parametrize("value", [-1, 1.5, 2**60, "3", True], ids=repr)
def test_a_count_that_is_none_is_refused_by_its_name(value):
    with pytest.raises(SpecError, match=r"window\.samples"):
        read_window(served(samples=value), 1.5)


@pytest.mark.parametrize(
    ("changed", "flaw"),
    [
        pytest.param({"stepSeconds": 0.0}, "not between", id="a step of no time"),
        pytest.param({"samples": 0}, "no samples", id="no samples"),
        pytest.param({"delaySeconds": 0.3}, "longer than a step", id="more waiting than time"),
        pytest.param({"work": {"peak": 0.01}}, "contradict", id="a fastest rank slower than the slowest"),
        pytest.param({"work": {"harmonic": 0.5}}, "contradict", id="a mean above the slowest"),
    ],
)
def test_numbers_that_cannot_be_true_together_are_a_flaw(changed, flaw):
    assert flaw in read_window(served(**changed), 1.5).flaw()


def test_ranks_that_tell_nothing_are_counted_and_an_earlier_coordinator_counts_none():
    assert read_window(served(silentRanks=2), 1.5).silent == 2
    assert read_window(SERVED, 1.5).silent == 0
    with pytest.raises(SpecError, match=r"window\.silentRanks"):
        read_window(served(silentRanks=-1), 1.5)


def test_a_host_that_is_no_name_is_refused():
    with pytest.raises(SpecError, match=r"window\.slowestHost"):
        read_window(served(slowestHost="a b\n"), 1.5)
