"""How often ranks tell each other: every two seconds, whatever a few steps of another length say."""

import pytest

pytest.importorskip("horovod", reason="NO HOROVOD HERE: `gradsieve build-horovod` builds it")
from hypothesis import given
from hypothesis import strategies as st

from gradsieve_hvd.control.plan_exchange import steps_to_next

SECONDS = st.floats(1e-6, 1e4)


def intervals(first_seconds, seconds, count):
    """Return the steps between messages of a training whose first step differs from all others."""
    found = [1]
    for number in range(count):
        found.append(steps_to_next(seconds if number else first_seconds, found[-1]))
    return found[1:]


@given(SECONDS, SECONDS)
def test_a_first_step_of_any_length_delays_the_next_message_by_two_steps_at_most(first, other):
    assert intervals(first, other, 1) == [2]


@given(SECONDS, st.floats(0.01, 1.0))
def test_after_a_few_messages_they_are_two_seconds_apart(first, seconds):
    assert intervals(first, seconds, 9)[-1] * seconds == pytest.approx(2.0, abs=seconds / 2 + 1e-9)


@given(SECONDS)
def test_a_message_never_follows_at_once_and_never_later_than_two_hundred_steps(seconds):
    assert all(2 <= steps <= 200 for steps in intervals(seconds, seconds, 20))


def test_steps_that_become_slow_are_noticed_within_the_steps_of_one_interval():
    fast = intervals(0.01, 0.01, 10)[-1]
    assert fast == 200
    assert steps_to_next(1.0, fast) == 2
