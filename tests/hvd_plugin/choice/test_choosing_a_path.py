"""A choice ends with what is really fastest, whatever the model does not know, and then stands still."""

import random
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from simulated_link import MBIT, SimulatedLink

from gradsieve_hvd.choice.costs import Link, Load, WorkRates, predict, rounds_of
from gradsieve_hvd.choice.explanation import Explanation
from gradsieve_hvd.choice.link_estimate import Timing
from gradsieve_hvd.choice.path_choice import PathChoice
from gradsieve_hvd.choice.path_chooser import PathChooser, Round
from gradsieve_hvd.choice.schedule import step_time
from gradsieve_hvd.choice.surplus import SETTLED

PATHS = ("allgather", "ring", "scatter", "dense")
RANKS = 4
LOAD = Load(1_000_000, 10_000)
BUCKETS = 6
RATES = WorkRates(select=2e-9, encode=3e-8, decode=3e-8, add=1e-10, narrow=5e-9, factor=1e-9)
few = settings(max_examples=3)  # each is a training of some hundred steps


@cache
def cost_of(path, start_up, rate):
    return predict(path, LOAD, RANKS, Link(start_up, rate), RATES)


class Training:
    """Steps whose exchanges pass a simulated link; ``unknown``: seconds of a step that no model tells, by
    path.
    """

    def __init__(self, rate, unknown, *, compute=0.25, jitter=0.01, seed=0):
        self.link = SimulatedLink(rate, jitter=0.0)
        self.unknown, self.compute, self.jitter = unknown, compute, jitter
        self.chooser = PathChooser(PATHS, RANKS, RATES)
        self.dice = random.Random(seed)
        self.lost = self.seconds = 0.0

    def takes(self, path):
        cost = cost_of(path, self.link.start_up, self.link.rate)
        return step_time(self.compute, [cost] * BUCKETS).seconds + self.unknown.get(path, 0.0)

    def best(self):
        return min(PATHS, key=self.takes)

    def step(self, skew=0.0):
        path = self.chooser.path
        noise = 1 + self.jitter * self.dice.uniform(-1, 1)
        seconds = self.takes(path) * noise
        sent = round(cost_of(path, 1, 1).wire_bytes)
        ready = {0: 0.2, 1: 0.2 + skew}
        timings = [
            self._timing(sent, rounds_of(path, RANKS), skew, ready),
            self._timing(2000, rounds_of("dense", RANKS), 0.0, {0: 0.2, 1: 0.2}),
        ]
        computing = self.compute + self.unknown.get(path, 0.0)  # it hides there
        self.lost += seconds / self.takes(self.best()) - 1
        self.seconds += seconds
        self.chooser.observe(Round(timings, [LOAD] * BUCKETS, computing * noise, seconds))

    def _timing(self, sent, rounds, skew, ready):
        seconds = self.link.seconds(sent, rounds) * (1 + self.jitter * self.dice.uniform(-1, 1))
        return Timing(0, sent, seconds + skew, rounds, ready)


def run(training, steps, **how):
    for _ in range(steps):
        training.step(**how)
    return training


RATES_OF_LINKS = st.sampled_from([10, 50, 100, 500, 1000, 10_000])
UNKNOWN = st.fixed_dictionaries({path: st.floats(0, 0.04) for path in PATHS})


@few
@example(10_000, {"allgather": 0.04, "ring": 0.0, "scatter": 0.03, "dense": 0.04}, 87)
@given(RATES_OF_LINKS, UNKNOWN, st.integers(0, 100))
def test_the_path_that_is_really_fastest_is_found_whatever_hides_in_computing(mbit, unknown, seed):
    training = run(Training(mbit * MBIT, unknown, seed=seed), 250)
    assert training.takes(training.chooser.path) <= 1.05 * training.takes(training.best())


@few
@example(10_000, dict.fromkeys(PATHS, 0.0), 0)
@given(RATES_OF_LINKS, UNKNOWN, st.integers(0, 100))
def test_looking_for_it_costs_little_and_becomes_rare(mbit, unknown, seed):
    training = run(Training(mbit * MBIT, unknown, seed=seed), 300)
    epoch, training.lost = training.chooser.explain().epoch, 0.0
    run(training, 150)
    assert training.lost <= 0.04 * 150
    assert training.chooser.explain().epoch <= epoch + 4  # two paths tried anew: there and back each


@few
@given(UNKNOWN, st.integers(0, 100))
def test_a_link_that_becomes_slow_and_recovers_is_followed_within_twenty_steps(unknown, seed):
    training = run(Training(1000 * MBIT, unknown, seed=seed), 150)
    training.link.rate = 50 * MBIT
    run(training, 20)
    assert training.takes(training.chooser.path) <= 1.25 * training.takes(training.best())
    run(training, 100)
    training.link.rate = 1000 * MBIT
    run(training, 20)
    assert training.takes(training.chooser.path) <= 1.25 * training.takes(training.best())


@few
@given(st.sampled_from([50, 1000]), UNKNOWN, st.integers(0, 100))
def test_a_rank_that_becomes_four_times_slower_changes_no_path(mbit, unknown, seed):
    def taken(skew):
        training = run(Training(mbit * MBIT, unknown, seed=seed), 250)
        return [run(training, 1, skew=skew).chooser.path for _ in range(60)]

    # Trials go on, so the path may change: at the same steps and to the same ones.
    assert taken(skew=0.75) == taken(skew=0.0)


def test_what_is_explained_is_what_was_measured_and_predicted():
    training = run(Training(100 * MBIT, {}), 100)
    explained = training.chooser.explain()
    assert explained.path == training.best()
    assert explained.measured_seconds == pytest.approx(training.takes(explained.path), rel=0.05)
    for path in PATHS:
        assert explained.predicted[path] == pytest.approx(training.takes(path), rel=0.15)
    assert explained.bytes_per_second == pytest.approx(100 * MBIT, rel=0.1)
    assert f"'{explained.path}'" in explained.line
    assert "100 Mbit/s" in str(replace(explained, bytes_per_second=100 * MBIT))


def test_a_change_is_told_once_with_both_paths():
    training = Training(50 * MBIT, {"allgather": 0.02})
    told = []
    observe = training.chooser.observe

    def listening(seen):
        if (changed := observe(seen)) is not None:
            told.append(changed)

    training.chooser.observe = listening
    run(training, 100)
    training.link.rate = 10_000 * MBIT
    run(training, 300)
    assert told[-1].path == training.chooser.path
    assert [each.epoch for each in told] == [*range(1, len(told) + 1)]
    assert told[0].before == "allgather"
    assert "instead of 'allgather'" in told[0].line


def test_that_a_trial_ends_to_compare_both_is_told():
    trial = Explanation("allgather").changed_to("scatter", 1, trying=True)
    assert "'scatter' instead of 'allgather', to measure it" in trial.line
    assert "travel by 'scatter', to measure it" in Explanation("scatter", trying=True).line
    back = trial.changed_to("allgather", 2, trying=False)
    assert "'allgather' instead of 'scatter', to compare both" in back.line
    assert "which is expected to be sooner" in back.changed_to("ring", 3, trying=False).line


def steps(choice, predicted, takes, number):
    """Take steps that really take what ``takes`` says; return the paths."""
    return [choice.decide(predicted, takes[choice.path]) for _ in range(number)]


def test_a_path_that_is_nearly_as_fast_is_tried_once_and_left_if_it_is_slower():
    choice = PathChoice("allgather")
    predicted, takes = {"allgather": 1.0, "ring": 1.05}, {"allgather": 1.0, "ring": 1.2}
    taken = steps(choice, predicted, takes, 400)
    assert 0 < taken.count("ring") <= SETTLED + 5
    assert taken[-1] == "allgather"
    assert choice.epoch == 2


def test_a_path_that_is_faster_than_predicted_is_found_and_kept():
    choice = PathChoice("allgather")
    predicted, takes = {"allgather": 1.0, "ring": 1.1}, {"allgather": 1.0, "ring": 0.9}
    assert steps(choice, predicted, takes, 400)[-1] == "ring"
    assert choice.epoch == 5  # to try it, back to compare, the same once more, and to stay


def test_a_path_that_was_left_for_a_faster_one_is_not_soon_tried_beside_it():
    choice = PathChoice("allgather")
    predicted = {"allgather": 1.0, "ring": 1.05, "scatter": 1.06}
    taken = steps(choice, predicted, {"allgather": 1.0, "ring": 0.93, "scatter": 0.95}, 300)
    left = len(taken) - taken[::-1].index("allgather")
    assert set(taken[left:]) == {"ring", "scatter"}
    assert left < 150


def noisy(takes, dice):
    """Yield what steps take on a machine on which they are a quarter slower for a while, now and then."""
    while True:
        for slower, mean in ((1.0, 60), (1.25, 15)):
            for _ in range(round(dice.expovariate(1 / mean))):
                yield {path: slower * dice.uniform(0.98, 1.02) * seconds for path, seconds in takes.items()}


@pytest.mark.parametrize("seed", range(20))
def test_other_work_on_a_machine_for_a_while_makes_no_slower_path_the_usual_one(seed):
    choice, seconds, best = PathChoice("allgather"), 0.0, 0.0
    predicted = {"allgather": 1.0, "ring": 1.1, "scatter": 1.05}
    moments = noisy({"allgather": 1.0, "ring": 1.12, "scatter": 1.08}, random.Random(seed))
    for takes, _ in zip(moments, range(1500), strict=False):
        seconds += takes[choice.path]
        best += takes["allgather"]
        choice.decide(predicted, takes[choice.path])
    assert seconds <= 1.02 * best


def scattering(seed, takes, predicted, steps, deviation=0.06):
    """Choose where steps scatter by one standard deviation; return the path that is kept in the end.

    A trial that is under way then is no decision yet.
    """
    choice, dice = PathChoice("allgather"), random.Random(seed)
    taken = 0
    while taken < steps or choice.trying:
        choice.decide(predicted, takes[choice.path] * dice.gauss(1, deviation))
        taken += 1
    return choice.path


@pytest.mark.parametrize(
    ("best", "takes", "found"),
    [
        ("scatter", {"allgather": 1.0, "ring": 1.08, "scatter": 0.94}, 0.98),
        ("scatter", {"allgather": 1.0, "ring": 1.08, "scatter": 0.97}, 0.85),
        ("allgather", {"allgather": 1.0, "ring": 1.08, "scatter": 1.03}, 0.95),
    ],
)
def test_where_steps_scatter_more_than_paths_differ_several_trials_tell_them_apart(best, takes, found):
    predicted = {"allgather": 1.0, "ring": 1.05, "scatter": 1.02}
    kept = [scattering(seed, takes, predicted, 700) for seed in range(60)]
    assert kept.count(best) >= found * len(kept), kept


def test_a_path_that_has_become_the_faster_one_is_found_in_a_later_trial():
    choice = PathChoice("allgather")
    predicted = {"allgather": 1.0, "ring": 1.05}
    steps(choice, predicted, {"allgather": 1.0, "ring": 1.08}, 200)
    assert choice.path == "allgather"
    assert steps(choice, predicted, {"allgather": 1.0, "ring": 0.9}, 400)[-1] == "ring"


def test_a_trial_ends_when_the_link_is_no_longer_what_it_was():
    choice = PathChoice("allgather")
    alike = {"allgather": 1.0, "dense": 1.05}
    while not choice.trying:
        choice.decide(alike, alike[choice.path])
    slow = {"allgather": 1.0, "dense": 40.0}
    assert choice.decide(slow, 40.0) == "allgather"
    assert set(steps(choice, slow, slow, 400)) == {"allgather"}


def test_what_is_predicted_to_be_much_slower_is_never_tried():
    choice = PathChoice("allgather")
    assert "ring" not in steps(choice, {"allgather": 1.0, "ring": 1.5}, {"allgather": 1.0}, 2000)


def test_a_machine_that_becomes_slower_for_all_paths_changes_none():
    choice = PathChoice("allgather")
    predicted = {"allgather": 1.0, "ring": 1.04}
    steps(choice, predicted, {"allgather": 1.0, "ring": 1.1}, 400)
    epoch = choice.epoch
    for slower in (1.05, 1.1, 1.15, 1.3):
        steps(choice, predicted, {"allgather": slower, "ring": 1.1 * slower}, 30)
    assert (choice.path, choice.epoch) == ("allgather", epoch)


def test_a_path_that_was_slower_than_before_and_after_is_so_whatever_the_machine_did():
    choice, predicted = PathChoice("allgather"), {"allgather": 1.0, "ring": 1.2}
    tried = False
    for _ in range(1000):
        slower = 1.2 if tried and not choice.trying else 1.0
        choice.decide(predicted, slower * (1.5 if choice.path == "ring" else 1.0))
        tried = tried or choice.trying
    assert (choice.path, choice.epoch) == ("allgather", 2)


@pytest.mark.parametrize("seed", range(10))
def test_what_a_trial_costs_beyond_what_was_expected_puts_the_next_ones_off(seed):
    """The machine is now like this, now like that, so that trials tell nothing."""
    choice, dice = PathChoice("allgather"), random.Random(seed)
    predicted, takes = {"allgather": 1.0, "ring": 1.2}, {"allgather": 1.0, "ring": 1.4}
    seconds = best = 0.0
    for _ in range(200):
        slower = dice.choice([1.0, 1.3, 1.6])
        for _ in range(10):
            seconds, best = seconds + slower * takes[choice.path], best + slower
            choice.decide(predicted, slower * takes[choice.path])
    assert 1.0 < seconds / best < 1.015


def test_a_trial_that_is_lost_ends_early():
    choice, predicted = PathChoice("allgather"), {"allgather": 1.0, "ring": 1.2}
    taken = steps(choice, predicted, {"allgather": 1.0, "ring": 1.5}, 400)
    assert 0 < taken.count("ring") < SETTLED


def test_a_trial_ends_although_its_steps_scatter_too_much_to_tell():
    choice, dice = PathChoice("allgather"), random.Random(0)
    predicted = {"allgather": 1.0, "ring": 1.1}
    lasted = trials = 0
    for _ in range(1000):
        took = dice.choice([0.6, 1.0, 1.5]) if choice.trying else 1.0
        before = choice.trying
        choice.decide(predicted, took)
        lasted, trials = lasted + choice.trying, trials + (choice.trying and not before)
    assert trials
    assert lasted <= 20 * trials


def test_a_pause_in_mid_trial_is_not_charged_to_it():
    """Else no path would be tried for a hundred times as long."""
    choice, predicted = PathChoice("allgather"), {"allgather": 1.0, "ring": 1.05}
    paused = False
    for _ in range(800):
        pauses, paused = choice.trying and not paused, paused or choice.trying
        choice.decide(predicted, 500.0 if pauses else predicted[choice.path])
    assert choice.epoch >= 4


def test_a_first_trial_after_which_the_machine_is_slower_counts_for_nothing_and_is_not_won():
    """Only predictions speak for the path then, and what its steps take is not known."""
    choice, predicted = PathChoice("allgather"), {"allgather": 1.0, "scatter": 0.95}
    tried, after = False, []
    for _ in range(250):
        slower = 1.3 if tried and not choice.trying else 1.0
        choice.decide(predicted, slower * predicted[choice.path])
        if tried and not choice.trying:
            after.append(choice.path)
        tried = tried or choice.trying
    assert set(after[: 2 * SETTLED]) == {"allgather"}
    assert len(after) > 2 * SETTLED


def test_a_machine_that_was_slower_before_and_after_a_trial_makes_no_path_the_usual_one():
    choice, predicted = PathChoice("allgather"), {"allgather": 1.0, "ring": 1.02}
    trials, compared = 0, []
    for _ in range(400):
        slower = 1.2 if trials < 2 and not choice.trying else 1.0  # until the second trial begins
        before = choice.trying
        choice.decide(predicted, slower * {"allgather": 1.0, "ring": 1.03}[choice.path])
        trials += choice.trying and not before
        if trials and not choice.trying:
            compared.append(choice.path)
    assert trials >= 2
    assert set(compared) == {"allgather"}


def test_a_trial_that_contradicts_those_before_it_is_repeated_at_once():
    """Else a path that has become faster, or was tried in bad moments, would wait for 300 steps each time."""
    choice, predicted = PathChoice("allgather"), {"allgather": 1.0, "ring": 1.02}
    steps(choice, predicted, {"allgather": 1.0, "ring": 1.06}, 200)
    taken = steps(choice, predicted, {"allgather": 1.0, "ring": 0.94}, 400)
    first = taken.index("ring")
    assert taken[first + 10 * SETTLED :] == ["ring"] * len(taken[first + 10 * SETTLED :])
    assert first + 10 * SETTLED < len(taken)


def test_where_single_steps_tell_little_a_faster_path_is_found_in_350_of_them():
    predicted, takes = {"allgather": 1.0, "scatter": 1.026}, {"allgather": 1.0, "scatter": 0.93}
    kept = [scattering(seed, takes, predicted, 350, 0.15) for seed in range(60)]
    assert kept.count("scatter") >= 48


def test_the_path_before_is_not_taken_again_for_a_single_trial_that_says_otherwise():
    """They were compared twice before; such a trial is repeated at once, and the middle counts."""
    choice, predicted = PathChoice("allgather"), {"allgather": 1.0, "ring": 1.02}
    steps(choice, predicted, {"allgather": 1.0, "ring": 0.96}, 100)
    assert (choice.path, choice.trying) == ("ring", False)
    taken, trials = [], 0
    while len(taken) < 400:
        before = choice.trying
        taken.append(
            choice.decide(predicted, {"allgather": 0.93 if trials < 2 else 1.0, "ring": 0.96}[choice.path])
        )
        trials += choice.trying and not before
    assert 0 < taken.count("allgather") <= 2 * SETTLED
    assert not choice.trying
    assert choice.path == "ring"
