"""What ranks find out about their link: soon, about right, and without taking noticeable time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsieve_hvd.control.link_probe import LinkProbe


class Link:
    """A link on a clock that only exchanges and the training move."""

    def __init__(self, ranks, start_up, bytes_per_second):
        self.now, self.probed = 0.0, 0.0
        self.others, self.start_up, self.rate = ranks - 1, start_up, bytes_per_second
        self.probe = LinkProbe(ranks, lambda: self.now)
        self.sizes = []

    def exchange(self, size):
        seconds = self.start_up + self.others * size / self.rate
        self.now += seconds
        self.probed += seconds
        return seconds

    def train(self, seconds, interval=2.0):
        for _ in range(int(seconds / interval)):
            self.now += interval
            if size := self.probe.due():
                self.sizes.append(size)
                self.exchange(0)
                self.probe.take(size, self.exchange(0), self.exchange(size))
        return self


RANKS = st.integers(2, 256)
START_UP = st.floats(1e-5, 0.05)
RATE = st.floats(1e5, 1e10)


@given(RANKS, START_UP, RATE)
def test_what_is_found_is_what_the_link_is(ranks, start_up, rate):
    link = Link(ranks, start_up, rate).train(60)
    assert link.probe.start_up == pytest.approx(start_up)
    assert link.probe.bytes_per_second == pytest.approx(rate, rel=0.05)


@given(RANKS, START_UP, RATE)
def test_probing_takes_at_most_a_hundredth_of_the_time(ranks, start_up, rate):
    link = Link(ranks, start_up, rate).train(30)
    before, probed = link.now, link.probed
    link.train(600)
    # But for the last one, whose pause has not passed yet.
    last = 3 * start_up + link.others * link.sizes[-1] / rate
    assert link.probed - probed - last <= 0.01 * (link.now - before)


@given(RANKS, START_UP, st.floats(1e6, 1e9), st.sampled_from([0.02, 50.0]))
def test_a_link_that_changes_is_known_within_a_minute(ranks, start_up, rate, factor):
    link = Link(ranks, min(start_up, 0.005), rate).train(60)
    link.rate *= factor
    link.train(60)
    assert link.probe.bytes_per_second == pytest.approx(link.rate, rel=0.05)


def test_a_probe_is_no_larger_than_a_mebibyte_for_each_rank_to_receive():
    link = Link(4, 0.5, 1e10).train(1000)
    assert max(link.sizes) * 3 <= 1 << 20


def test_one_rank_alone_probes_nothing():
    probe = LinkProbe(1)
    assert (probe.due(), probe.start_up, probe.bytes_per_second) == (0, 0.0, 0.0)


def test_an_exchange_that_seems_to_take_no_time_spoils_nothing():
    link = Link(2, 0.001, 1e9)
    link.probe.take(1000, 0.002, 0.001)
    assert link.probe.bytes_per_second > 0
    link.now += 60
    assert 0 < link.probe.due() <= 1 << 20
