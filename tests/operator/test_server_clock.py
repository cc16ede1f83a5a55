"""Ages are told by the clock that dates the cluster's objects, however wrong our own is."""

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from gradsieve_operator.cluster.server_clock import ServerClock

START = 1_900_000_000.0


def spelled(time: float) -> str:
    return format_datetime(datetime.fromtimestamp(time, UTC), usegmt=True)


class Clocks:
    """The server's, ours, and a steady one."""

    def __init__(self, off: float = 0.0) -> None:
        self.passed, self.off = 0.0, off
        self.clock = ServerClock(lambda: START + self.passed + self.off, lambda: self.passed)

    def hear(self, seconds: float = 0.01) -> None:
        self.clock.told(spelled(START + self.passed), seconds)

    @property
    def error(self) -> float:
        return self.clock.now() - (START + self.passed)


@pytest.mark.parametrize("off", [300.0, -300.0])
def test_a_clock_that_is_minutes_off_is_put_right_by_the_first_answer(off):
    clocks = Clocks(off)
    clocks.passed = 10.4
    clocks.hear()
    assert abs(clocks.error) <= 1.0
    clocks.passed = 3600.0
    assert abs(clocks.error) <= 1.0


def test_a_clock_that_is_set_while_we_run_changes_nothing():
    clocks = Clocks()
    clocks.hear()
    clocks.off = 300.0
    clocks.passed = 60.0
    assert clocks.error == 0.0
    clocks.hear()
    assert clocks.error == 0.0


def test_a_server_whose_clock_is_put_right_is_followed():
    clocks = Clocks()
    clocks.passed, clocks.off = 100.7, -50.0  # ours: the server has gone on by 50 s
    clocks.clock.told(spelled(START + 150.0), 0.0)
    assert clocks.clock.now() == START + 150.0


def test_a_clock_that_agrees_keeps_its_fractions():
    clocks = Clocks(off=-0.3)
    clocks.passed = 5.9
    clocks.hear()
    assert clocks.error == pytest.approx(-0.3)


def test_an_answer_that_took_long_sets_nothing():
    clocks = Clocks()
    clocks.clock.told(spelled(START - 25.0), 25.0)
    assert clocks.error == 0.0


@pytest.mark.parametrize("date", [None, "", "yesterday"])
def test_what_is_no_date_sets_nothing(date):
    clocks = Clocks(off=300.0)
    clocks.clock.told(date, 0.0)
    assert clocks.error == 300.0
