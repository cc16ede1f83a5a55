"""What holds of every decision, whatever is measured."""

import dataclasses
import itertools
import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st
from measured_job import MeasuredJob, even

from gradsieve_operator.adapt import Asked, Change, Hold, Memory, Plan, Window, Work, adapt, plan_in_force
from gradsieve_operator.adapt.memory import MOST_DOUBLINGS, Trial
from gradsieve_operator.adapt.promised import Promised
from gradsieve_operator.spec import Adaptation
from gradsieve_operator.spec.values import MODES

CHOSEN = ("Synchronous", "Balanced", "Local", "Adaptive")
MODE_SETS = st.sets(st.sampled_from(CHOSEN), min_size=0).map(lambda some: ("Synchronous", *sorted(some)))
DENSITIES = st.integers(1, 1000)


@st.composite
def wishes(draw):
    low, mid, high = sorted(draw(st.tuples(DENSITIES, DENSITIES, DENSITIES)))
    limits = draw(st.sampled_from([(low, high), (None, None)]))
    return Asked(
        plan=Plan("Synchronous", mid),
        lowest_permille=limits[0],
        highest_permille=limits[1],
        choose_mode=draw(st.booleans()),
        modes=draw(MODE_SETS),
        adaptation=Adaptation(
            enabled=True,
            interval=draw(st.integers(15, 120)),
            cooldown=draw(st.integers(15, 600)),
            hysteresis_percent=draw(st.integers(5, 50)),
            min_samples=draw(st.integers(2, 30)),
        ),
        generation=draw(st.integers(0, 3)),
    )


ANYTHING = st.floats() | st.sampled_from([0.0, -1.0, 1e-300, 1e300, math.nan, math.inf, -math.inf])
SANE = st.floats(1e-3, 1e3)


PROMISES = st.builds(
    Promised,
    computing=st.dictionaries(st.sampled_from(MODES), st.floats(1e-7, 1e6)),
    exchange=st.lists(
        st.tuples(st.floats(1e-6, 1e6), st.floats(0, 1e6)), max_size=4, unique_by=lambda each: each[0]
    )
    .map(sorted)
    .map(tuple),
)


def windows(times):
    work = st.builds(Work, harmonic=times, paced=times, slowest=times, peak=times)
    return st.builds(
        Window,
        generation=st.integers(0, 3),
        samples=st.integers(-1, 10_000),
        seconds=times,
        age=times,
        step=times,
        deviation=times,
        delay=times,
        work=work,
        host=st.text(max_size=8),
        promised=PROMISES,
    )


@st.composite
def sane_windows(draw):
    harmonic, paced, slowest, peak = sorted(draw(st.tuples(SANE, SANE, SANE, SANE)))
    delay = draw(st.floats(0, 1e3))
    return Window(
        generation=draw(st.integers(0, 3)),
        samples=draw(st.integers(1, 64)),
        seconds=60.0,
        age=draw(st.floats(0, 100)),
        step=peak + delay,
        deviation=draw(st.floats(0, 0.1)) * (peak + delay),
        delay=delay,
        work=Work(harmonic, paced, slowest, peak),
        promised=draw(PROMISES),
    )


PLANS = st.builds(
    Plan,
    st.sampled_from(MODES),
    density_permille=st.none() | DENSITIES,
    local_steps=st.none() | st.integers(1, 1000),
)
NUMBERS, GAINS = st.floats(0, 1e10), st.floats(-1, 100)
MEMORIES = st.builds(
    Memory,
    asked=st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=64).map(str.strip),
    plan=st.none() | PLANS,
    since=NUMBERS,
    left=st.none() | PLANS,
    doublings=st.integers(0, MOST_DOUBLINGS),
    trial=st.none() | st.builds(Trial, seconds=NUMBERS, expected=GAINS, least=GAINS),
    candidate=st.sampled_from(["", "Balanced", "Synchronous-"]),
    candidate_since=NUMBERS,
    reason=st.sampled_from(["", "SlowTail"]),
    evidence=st.just(""),
)


@settings(max_examples=300)
@given(windows(ANYTHING) | sane_windows() | st.none(), wishes(), MEMORIES, st.floats(0, 1e10))
def test_whatever_is_reported_a_plan_is_one_that_author_and_program_allow(window, asked, memory, now):
    if memory.asked:
        memory = dataclasses.replace(memory, asked=asked.key, plan=None, left=None)
    found = adapt(window, asked, memory, now)
    plan = plan_in_force(asked, found.memory)
    assert plan.mode in (asked.modes if asked.choose_mode else (asked.plan.mode,))
    lowest = asked.lowest_permille or asked.plan.density_permille
    highest = asked.highest_permille or asked.plan.density_permille
    assert lowest <= plan.density_permille <= highest
    assert isinstance(found, Hold) or found.plan == plan


@given(windows(ANYTHING).filter(Window.flaw), wishes(), st.floats(0, 1e10))
def test_nothing_is_concluded_from_what_cannot_be(window, asked, now):
    found = adapt(window, asked, Memory(), now)
    assert isinstance(found, Hold)
    assert (found.reason, found.settled) == ("UnusableTelemetry", False)


@given(MEMORIES)
def test_memory_survives_a_restart_of_the_operator(memory):
    assert Memory.read(json.loads(json.dumps(memory.manifest())), "memory") == memory


@given(MEMORIES.filter(lambda memory: memory.trial))
def test_memory_is_small(memory):
    longest = dataclasses.replace(memory, evidence="x" * 512, asked="y" * 64)
    assert len(json.dumps(longest.manifest())) < 1500


@settings(max_examples=100)
@given(st.lists(sane_windows(), min_size=2, max_size=40), wishes())
def test_every_change_that_undoes_the_one_before_doubles_the_cool_down_and_keeps_to_it(measured, asked):
    memory, now, changes = Memory(), 1000.0, []
    for window in measured:
        for _ in range(3):
            now += asked.adaptation.interval
            before = memory
            told = dataclasses.replace(window, generation=asked.generation)
            found = adapt(told, asked, memory, now)
            memory = found.memory
            if isinstance(found, Change):
                changes.append((now, before, found.memory))
    for (earlier, _, first), (later, before, second) in itertools.pairwise(changes):
        assert later - earlier >= asked.adaptation.cooldown * 2**first.doublings
        quiet = later - earlier > 8 * asked.adaptation.cooldown * 2**first.doublings
        if second.plan == first.left and not quiet:
            assert second.doublings == min(before.doublings + 1, MOST_DOUBLINGS)


@settings(max_examples=50)
@given(
    st.lists(st.floats(-1, 1), min_size=16, max_size=16),
    st.integers(8, 40),
    st.sampled_from([0.0, 0.2, 1.0, 5.0]),
    st.booleans(),
)
def test_noise_within_the_hysteresis_never_has_a_plan_taken_back(waves, percent, link, choose):
    adaptation = Adaptation(enabled=True, interval=30, cooldown=60, hysteresis_percent=percent)
    asked = Asked(
        plan=Plan("Synchronous", 50),
        lowest_permille=5,
        highest_permille=100,
        choose_mode=choose,
        modes=CHOSEN,
        adaptation=adaptation,
    )

    def noise(now):
        return 1 + percent / 100 / 8 * waves[int(now / 8) % len(waves)]

    job = MeasuredJob(asked, even(), link=lambda _: link, noise=noise).run(3600)
    seen = [plan for _, plan, _ in job.changes]
    assert len(seen) == len(set(seen))
    assert "GainMissing" not in [reason for _, _, reason in job.changes]


@given(sane_windows(), wishes(), st.floats(1e6, 1e9))
def test_a_change_is_remembered_and_a_look_that_changes_nothing_leaves_memory_as_it_was(window, asked, now):
    window = dataclasses.replace(window, generation=asked.generation, samples=64, age=1.0)
    first = adapt(window, asked, Memory(), now)
    again = adapt(window, asked, first.memory, now + 1)
    assert isinstance(again, Hold)
    assert again.memory == first.memory
