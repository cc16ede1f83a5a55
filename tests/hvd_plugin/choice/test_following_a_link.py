"""Estimates follow a link that changes; slow ranks, bursts and single outliers do not move them."""

import math
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from simulated_link import MBIT, SimulatedLink

from gradsieve_hvd.choice.costs import Link, Load, WorkRates, predict
from gradsieve_hvd.choice.link_estimate import LinkEstimate, ProbeBudget, Timing
from gradsieve_hvd.choice.link_fit import LinkFit, Point, fitted
from gradsieve_hvd.choice.path_choice import MARGIN, PATIENCE, PathChoice

# An exact top-k, by four ranks to a core: so much work that a fast link does not want it.
RATES = WorkRates(select=1.5e-8, encode=3e-8, decode=3e-8, add=1e-10, narrow=5e-9, factor=1e-9)
LARGE = Load(1_000_000, 50_000, ranks_per_core=4)
SMALL = Load(1_000_000, 4_000, ranks_per_core=4)  # 70 kB: within many a burst
ROUNDS = {"dense": 6, "allgather": 1}
RANKS = 4
FIRST = Link(5e-4, 1000 * MBIT)
FAST, SLOW = 1000 * MBIT, 50 * MBIT
KILO = 1024
few = settings(max_examples=6, deadline=None)  # each is a training of some hundred steps
loads = pytest.mark.parametrize("load", [pytest.param(SMALL, id="70 kB"), pytest.param(LARGE, id="800 kB")])


def predicted(load, link):
    return {path: predict(path, load, RANKS, link, RATES).seconds for path in ROUNDS}


class Training:
    """Steps over a simulated link by the path that is chosen, with probes from the budget."""

    def __init__(self, link, load, compute_seconds=0.1):
        self.link, self.load, self.compute = link, load, compute_seconds
        self.estimate, self.budget = LinkEstimate(FIRST), ProbeBudget()
        self.choice = PathChoice("dense")
        self.training_seconds = self.probe_seconds = 0.0
        self.dice = random.Random(1)

    def step(self, slow_rank=0.0):
        self.link.idle(self.compute)
        probing = self._probe()
        self._exchange(4 * KILO, 1)  # tensors that are not compressed
        late = slow_rank * self.dice.uniform(0.9, 1.1)
        # Clocks of rounds do not begin together: what is told of the skew is not quite what it is.
        told = max(late + self.dice.gauss(0, 0.003), 0.0) if slow_rank else 0.0
        self.link.idle(late)
        path = self.choice.path
        sent = round(predict(path, self.load, RANKS, FIRST, RATES).wire_bytes)
        wire = self._exchange(sent, ROUNDS[path], late, told)
        took = self.compute + late + wire + probing
        self.training_seconds += took
        self.budget.passed(took)
        self.choice.decide(predicted(self.load, self.estimate.link))

    def _exchange(self, sent, rounds, late=0.0, told=0.0):
        wire = self.link.seconds(sent, rounds)
        self.estimate.observe(Timing(0, sent, wire + late, rounds, {0: 0.1, 1: 0.1 + told}))
        return wire

    def _probe(self):
        size = self.budget.probe_bytes(self.estimate)
        if not size:
            return 0.0
        seconds = self._exchange(size, 1)
        self.budget.spent(seconds)
        self.probe_seconds += seconds
        return seconds


def run(training, steps, **how):
    for _ in range(steps):
        training.step(**how)
    return training.choice


@loads
def test_the_best_path_is_another_one_on_the_slow_link(load):
    fast, slow = (predicted(load, Link(5e-4, rate)) for rate in (FAST, SLOW))
    assert fast["dense"] < 0.85 * fast["allgather"]
    assert slow["allgather"] < 0.85 * slow["dense"]


@loads
@pytest.mark.parametrize("burst", [0, 64 * KILO, 256 * KILO])
@few
@given(st.integers(0, 1000), st.floats(0, 0.1))
def test_a_link_that_becomes_slow_and_recovers_is_followed_within_twenty_steps(load, burst, seed, jitter):
    link = SimulatedLink(FAST, burst=burst, jitter=jitter, dice=random.Random(seed))
    training = Training(link, load)
    assert run(training, 20).path == "dense"
    link.rate = SLOW
    assert run(training, 20).path == "allgather"
    run(training, 30)
    link.rate = FAST
    assert run(training, 20).path == "dense"
    assert run(training, 50).epoch == 2


@loads
@few
@given(
    st.floats(10, 10_000), st.sampled_from([0, 64 * KILO, 256 * KILO]), st.integers(0, 100), st.floats(0, 0.1)
)
def test_on_a_link_that_stays_as_it_is_the_path_changes_once_at_most(load, rate, burst, seed, jitter):
    link = SimulatedLink(rate * MBIT, burst=burst, jitter=jitter, dice=random.Random(seed))
    assert run(Training(link, load), 100).epoch <= 1


def test_small_exchanges_that_fit_into_a_burst_again_do_not_make_a_link_fast():
    """A probe had emptied the burst; the exchanges after it were slow, and those after them quick."""
    link = SimulatedLink(16 * MBIT, burst=256 * KILO, jitter=0.0625, dice=random.Random(50))
    training = Training(link, SMALL)
    assert run(training, 100).epoch == 1
    assert training.estimate.link.bytes_per_second < 100 * MBIT


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mbit", [475, 550, 650])
def test_where_a_burst_holds_all_but_probes_the_path_changes_once_at_most(mbit, seed):
    link = SimulatedLink(mbit * MBIT, burst=256 * KILO, jitter=0.1, dice=random.Random(seed))
    assert run(Training(link, SMALL), 100).epoch <= 1


@loads
@pytest.mark.parametrize("burst", [0, 256 * KILO])
@pytest.mark.parametrize("rate", [SLOW, FAST])
@few
@given(st.integers(0, 1000))
def test_a_rank_that_becomes_four_times_slower_changes_no_path(load, rate, burst, seed):
    training = Training(SimulatedLink(rate, burst=burst, dice=random.Random(seed)), load)
    before = run(training, 30).path
    epoch = training.choice.epoch
    assert (run(training, 60, slow_rank=0.3).path, training.choice.epoch) == (before, epoch)


@loads
def test_a_link_that_changes_is_followed_beside_a_slow_rank(load):
    link = SimulatedLink(FAST, burst=256 * KILO)
    training = Training(link, load)
    assert run(training, 20, slow_rank=0.3).path == "dense"
    link.rate = SLOW
    assert run(training, 20, slow_rank=0.3).path == "allgather"
    link.rate = FAST
    assert run(training, 20, slow_rank=0.3).path == "dense"


@loads
@few
@given(st.floats(10, 10_000), st.sampled_from([0, 64 * KILO, 256 * KILO]))
def test_probes_take_a_hundredth_of_the_time_but_for_what_one_is_off(load, rate, burst):
    training = Training(SimulatedLink(rate * MBIT, burst=burst), load)
    run(training, 100)
    settled, probed = training.training_seconds, training.probe_seconds
    run(training, 300)
    assert training.probe_seconds - probed <= 0.01 * (training.training_seconds - settled) + 0.1


@given(st.floats(0.001, 10.0), st.floats(0.0, 1.9), st.floats(0.0, 5.0))
def test_the_wait_for_the_last_rank_is_not_the_links(wire, times, own):
    skew = times * wire
    late = Timing(0, 1000, wire + skew, ready_seconds={0: own, 1: own + skew, 2: own})
    assert late.wire_seconds == pytest.approx(wire, rel=1e-6)
    last = Timing(1, 1000, wire, ready_seconds={0: own, 1: own + skew})
    assert last.wire_seconds == wire


@given(st.floats(0.001, 10.0), st.floats(2.1, 1000.0))
def test_what_is_mostly_waiting_for_a_rank_says_nothing_of_the_link(wire, times):
    skew = times * wire
    estimate = LinkEstimate(FIRST)
    before = estimate.link
    estimate.observe(Timing(0, 1_000_000, wire + skew, ready_seconds={0: 0.0, 1: skew}))
    assert estimate.link == before


@given(st.floats(10, 10_000), st.floats(1e-5, 1e-2), st.sampled_from([0, 64 * KILO, 256 * KILO]))
def test_a_steady_link_is_found_out_with_its_burst(mbit, start_up, burst):
    link = LinkFit(start_up, 1 / (mbit * MBIT), burst)
    # the larger ones move for a good part of their time, whatever the link
    sizes = [0, *(burst + round(seconds * mbit * MBIT) for seconds in (0.1, 0.2, 0.4))]
    points = [Point(size, 1, 0) for size in sizes]
    points = [Point(point.sent, 1, link.seconds(point)) for point in points]
    found = fitted(points, LinkFit(1e-4, 1e-8))
    assert found.start_up == pytest.approx(start_up, rel=1e-3)
    assert found.per_byte == pytest.approx(link.per_byte, rel=1e-3)
    assert found.burst == pytest.approx(burst, abs=1e-3 * sizes[-1])


@given(st.floats(2, 100), st.integers(1, 6), st.sampled_from([0.0, 100 * KILO]))
def test_what_bytes_took_before_is_laid_to_the_bandwidth_where_one_size_alone_tells(slower, rounds, burst):
    before = LinkFit(3e-4, 1 / FAST, burst)
    slow = LinkFit(3e-4, slower / FAST, burst)
    point = Point(1_000_000, rounds, slow.seconds(Point(1_000_000, rounds, 0)))
    assert fitted([point] * 3, before).per_byte == pytest.approx(slow.per_byte, rel=1e-3)


SENT = st.integers(0, 10**9) | st.sampled_from([0, 1, 950, 951, 1000, 1001])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.builds(Point, SENT, st.integers(1, 14), st.floats(1e-9, 1e3)), min_size=1, max_size=24),
    st.builds(LinkFit, st.floats(1e-9, 10), st.floats(1e-12, 1e-3), SENT.map(float)),
)
@example([Point(0, 1, 1.0)], LinkFit(1.0, 3e-4, 5e8))
@example([Point(0, 1, 1.0), Point(0, 2, 1.0)], LinkFit(1.0, 8e-4, 3e8))
@example([Point(1001, 1, 2.0), Point(950, 6, 1.0)], LinkFit(1e-9, 1e-3, 950.0))
def test_whatever_was_measured_a_fit_is_a_link(points, before):
    found = fitted(points, before)
    assert found.start_up > 0
    assert 0 < found.per_byte < math.inf
    assert found.burst >= 0


@given(st.lists(st.floats(0.01, 100.0), min_size=2, max_size=2))
def test_two_exchanges_of_five_that_are_off_leave_the_estimate_among_the_others(outliers):
    estimate, usual = LinkEstimate(FIRST), (1.0, 1.01, 1.02)
    sent = 50_000_000
    for seconds in [*usual, *outliers]:
        estimate.observe(Timing(0, sent, seconds))
    rates = [sent / (seconds - FIRST.start_up_seconds) for seconds in usual]
    assert 0.999 * min(rates) <= estimate.link.bytes_per_second <= 1.001 * max(rates)


@given(st.lists(st.tuples(st.floats(0.001, 1.0), st.floats(0.0001, 0.5)), max_size=200))
def test_the_budget_gives_a_hundredth_of_the_time_but_for_the_last_probe(steps):
    estimate = LinkEstimate(FIRST)
    for _ in range(8):
        estimate.observe(Timing(0, 10_000, 5e-4))
    budget, passed, spent, last = ProbeBudget(), 0.0, 0.0, 0.0
    for step, probe in steps:
        passed += step
        budget.passed(step)
        if budget.probe_bytes(estimate):
            spent, last = spent + probe, probe
            budget.spent(probe)
    assert spent - last <= 0.01 * passed + 1e-9


@few
@given(st.floats(1e-4, 1.0))
def test_a_probe_is_made_some_time_however_long_messages_take_to_start(start_up):
    estimate, budget = LinkEstimate(FIRST), ProbeBudget()
    steps = 2 + round(10 / 0.01)
    for _ in range(steps):
        estimate.observe(Timing(0, 10_000, start_up))
        budget.passed(start_up)
        if budget.probe_bytes(estimate):
            return
    pytest.fail(f"no probe in {steps} steps")


@given(st.lists(st.floats(1 - MARGIN / 2, 1 + MARGIN / 2), max_size=100))
def test_what_differs_by_less_than_the_margin_never_changes_a_path(others):
    choice = PathChoice("dense")
    for other in others:
        choice.decide({"dense": 1.0, "ring": other})
    assert (choice.path, choice.epoch) == ("dense", 0)


def test_a_change_needs_the_same_better_path_several_times_in_a_row():
    choice = PathChoice("dense")
    for _ in range(10):
        for _ in range(PATIENCE - 1):
            choice.decide({"dense": 1.0, "ring": 0.5})
        choice.decide({"dense": 1.0, "ring": 1.0})
    assert choice.epoch == 0
    for _ in range(PATIENCE):
        choice.decide({"dense": 1.0, "ring": 0.5})
    assert (choice.path, choice.epoch) == ("ring", 1)
