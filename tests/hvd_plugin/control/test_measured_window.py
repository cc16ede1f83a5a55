"""What the coordinator makes of the last samples: bounded, and by its own clock."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsieve_hvd.control.fields import Fields
from gradsieve_hvd.control.messages import MOST_RANKS
from gradsieve_hvd.control.telemetry import RankTelemetry, Telemetry
from gradsieve_hvd.control.window import MOST_HOSTS, MOST_SAMPLES, MOST_SLOWEST, Window
from gradsieve_operator.adapt import read_window


def sample(work, waits=None, *, step=0.2, plan=1, generation=1, host="worker-{}"):
    waits = waits or [0.05] * len(work)
    ranks = tuple(
        RankTelemetry(rank, host.format(rank), own, wait)
        for rank, (own, wait) in enumerate(zip(work, waits, strict=True))
    )
    numbers = {"stepSeconds": step, "waitSeconds": 0.05, "time": 0.0, "appliedPlanGeneration": float(plan)}
    return Telemetry(generation, 10, numbers, ranks)


def filled(*samples):
    window = Window()
    for number, each in enumerate(samples):
        window.take(each, 2.0 * number)
    return window.to_json()


def test_a_window_without_samples_or_ranks_says_nothing():
    assert filled() is None
    assert filled(Telemetry(1, 10, {"time": 0.0})) is None


def test_ranks_that_are_always_slow_differ_from_ranks_that_are_slow_in_turns():
    always = filled(*[sample([0.1, 0.1, 0.1, 0.3])] * 4)["work"]
    in_turns = filled(*[sample([0.3 if rank == turn else 0.1 for rank in range(4)]) for turn in range(4)])[
        "work"
    ]
    assert always["slowest"] == pytest.approx(0.3)
    assert in_turns["slowest"] == pytest.approx(0.15)
    assert always["peak"] == in_turns["peak"] == pytest.approx(0.3)
    assert always["harmonic"] == pytest.approx(4 / (3 / 0.1 + 1 / 0.3))


def test_later_steps_tell_what_a_plan_has_come_to():
    steps = [0.5, 0.5, 0.5, 0.5, 0.2, 0.2, 9.0, 0.2]
    found = filled(*[sample([0.1, 0.1], step=step) for step in steps])
    assert found["recentStepSeconds"] == pytest.approx(0.2)
    assert found["stepSeconds"] > 1


def test_what_the_rank_that_waits_least_waits_for_is_the_exchange():
    found = filled(*[sample([0.1, 0.1, 0.3], [0.25, 0.24, 0.04], step=0.35)] * 3)
    assert found["delaySeconds"] == pytest.approx(0.04)
    assert found["slowestHost"] == "worker-2"
    assert [rank["rank"] for rank in found["slowestRanks"]] == [2, 0, 1]
    assert found["slowestRanks"][0]["workSeconds90"] == pytest.approx(0.3)


def test_it_covers_the_last_minute_by_the_coordinators_clock():
    found = filled(*[sample([0.1])] * 100)
    assert found["samples"] == MOST_SAMPLES
    assert found["seconds"] == 2.0 * (MOST_SAMPLES - 1)


@pytest.mark.parametrize(
    "next_sample",
    [
        pytest.param(sample([0.1, 0.1], plan=2), id="another plan"),
        pytest.param(sample([0.1, 0.1], generation=2), id="another start"),
        pytest.param(sample([0.1, 0.1, 0.1]), id="more ranks"),
        pytest.param(sample([0.1, 0.1], host="other-{}"), id="other hosts"),
    ],
)
def test_samples_of_what_was_before_do_not_count(next_sample):
    found = filled(*[sample([0.1, 0.1])] * 5, next_sample)
    assert (found["samples"], found["planGeneration"]) == (1, next_sample.numbers["appliedPlanGeneration"])


def test_what_the_operator_gets_of_the_largest_job_is_small():
    ranks = sample([0.1 + rank / MOST_RANKS for rank in range(MOST_RANKS)], host="h" * 240 + "{}")
    window = Window()
    for second in (0.0, 2.0):
        window.take(ranks, second, tuple(rank.host for rank in ranks.ranks))
    found = window.to_json()
    assert len(json.dumps(found)) < 64 << 10
    assert (len(found["slowestRanks"]), len(found["hosts"])) == (MOST_SLOWEST, MOST_HOSTS)
    assert found["ranks"] == MOST_RANKS


NUMBER = st.floats(0, 1e18)


@given(st.lists(st.lists(NUMBER, min_size=3, max_size=3), min_size=1, max_size=5), NUMBER)
def test_whatever_is_reported_what_is_served_is_json_without_nonsense(works, step):
    text = json.dumps(filled(*[sample(work, work, step=step) for work in works]), allow_nan=False)
    Fields.parse(text, "window")


@given(st.lists(st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=4), min_size=2, max_size=8))
def test_the_operator_reads_what_is_served(works):
    delays = [0.01] * 4
    window = read_window(filled(*[sample(work, delays, step=max(work) + 0.01) for work in works]), age=1.0)
    assert window.flaw() == ""
