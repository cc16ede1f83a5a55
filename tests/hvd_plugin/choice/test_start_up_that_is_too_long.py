"""A start-up that busy cores have made of something else does not speak for itself for ever."""

from __future__ import annotations

from gradsieve_hvd.choice.costs import Link
from gradsieve_hvd.choice.link_estimate import SMALLEST_PROBE, LinkEstimate, ProbeBudget, Timing

READY = {0: 0.0, 1: 0.0}
SLOW = 50e6 / 8
FAST = 1000e6 / 8
START_UP = 0.001


class Rounds:
    """Rounds of a training whose exchanges have two rounds of messages, with a small sum behind them, of
    which nobody knows more than bounds.
    """

    def __init__(self, believed: Link) -> None:
        self.estimate, self.budget = LinkEstimate(believed), ProbeBudget()
        self.probes: list[int] = []

    def make(self, rounds: int, rate: float = FAST) -> LinkEstimate:
        for _ in range(rounds):
            self._observe(640_000, rate, waited=0.01)
            travelled = START_UP + 640_000 / rate + 0.03
            small = Timing(0, 17_000, 0.005, 1, READY, 1e-4, travelled)
            self.estimate.observe(small)
            self.budget.passed(0.13)
            if size := self.budget.probe_bytes(self.estimate):
                self.probes.append(size)
                self.budget.spent(self._observe(size, rate))
        return self.estimate

    def _observe(self, size: int, rate: float, waited: float | None = None) -> float:
        """Let such an exchange be seen; with work beside it for 30 ms if it was waited for so long alone."""
        took = START_UP + size / rate + (0.03 if waited is not None else 0.0)
        least = None if waited is None else max(waited, START_UP + size / rate - 0.01)
        self.estimate.observe(Timing(0, size, took, 1, READY, least, took))
        return took


def test_it_is_not_longer_than_a_message_took():
    assert Rounds(Link(0.123, FAST)).make(1).link.start_up_seconds < 0.04


def test_an_empty_message_is_sent_where_a_probe_would_take_longer_than_may_be_saved():
    rounds = Rounds(Link(0.123, SLOW))
    rounds.make(60)
    assert rounds.probes[0] == SMALLEST_PROBE
    assert rounds.estimate.link.start_up_seconds < 0.01


def test_a_link_that_has_recovered_is_found_out_behind_it():
    rounds = Rounds(Link(0.123, SLOW))
    rounds.make(30, SLOW)
    assert rounds.make(120).link.bytes_per_second > 1.5 * SLOW


def test_where_start_ups_are_short_no_empty_message_is_sent():
    rounds = Rounds(Link(START_UP, FAST))
    rounds.make(100)
    assert SMALLEST_PROBE not in rounds.probes
