"""What rank 0 sees of ranks that step at their own pace."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsieve_hvd.engine.pace import Pace

BEGAN = Pace(100.0, (3, 3), (1.0, 1.0), 3, 300, 0.1, 4000)


def after(seconds, pushes, computing, own_bytes=0):
    return dataclasses.replace(
        BEGAN,
        time=BEGAN.time + seconds,
        pushes=tuple(3 + each for each in pushes),
        computing=tuple(1.0 + each for each in computing),
        own_steps=3 + pushes[0],
        own_bytes=300 + own_bytes,
    )


def test_a_step_is_as_many_batches_as_there_are_ranks():
    done = after(10.0, (20, 5), (8.0, 9.0), own_bytes=4000).since(BEGAN)
    assert done.step_seconds == pytest.approx(10.0 * 2 / 25)
    assert done.work == pytest.approx((0.4, 1.8))
    assert done.waits == pytest.approx((0.1, 0.2))
    assert done.wait_seconds == pytest.approx(done.step_seconds * (0.1 / 0.5 + 0.2 / 2.0) / 2)
    assert done.wire_bytes == 200


@pytest.mark.parametrize("pushes", [(0, 5), (5, 0), (0, 0)])
def test_nothing_is_said_until_each_rank_has_pushed(pushes):
    assert after(10.0, pushes, (1.0, 1.0)).since(BEGAN) is None


def test_nothing_is_said_of_no_time():
    assert after(0.0, (1, 1), (0.1, 0.1)).since(BEGAN) is None


@given(
    st.floats(0.01, 1e3),
    st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 1e4)), min_size=2, max_size=2),
)
def test_no_rank_waits_longer_than_its_step_takes(seconds, ranks):
    pushes, computing = zip(*ranks, strict=True)
    done = after(seconds, pushes, computing).since(BEGAN)
    assert 0 <= done.wait_seconds <= done.step_seconds
    assert all(wait >= 0 for wait in done.waits)
