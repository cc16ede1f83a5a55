"""What steps say of batches and exchanges: see `gradsieve_hvd.experiments.parallel.steps`."""

import pytest

from gradsieve_hvd.experiments.parallel.steps import Steps, exchanges

BATCH = 10
SLOW_START = 100.0


def rank(samples, computing, stepping, held=None):
    return Steps(samples, computing, stepping, held or [0.0] * len(samples))


def test_ranks_in_step_exchange_for_as_long_as_the_last_of_each_step_waits():
    first = rank([10, 10, 10], [SLOW_START, 1.0, 3.0], [9.0, 2.5, 0.5])
    second = rank([10, 10, 10], [SLOW_START, 3.0, 1.0], [9.0, 0.5, 2.7])
    assert exchanges([first, second], BATCH, together=True)["seconds"] == [0.5, 0.5]


def test_answers_take_what_a_rank_was_not_held_for():
    first = rank([10, 10, 10], [SLOW_START, 1.0, 1.0], [9.0, 2.5, 0.7], [0.0, 2.0, 0.0])
    second = rank([10, 10], [SLOW_START, 3.0], [9.0, 0.4])
    assert exchanges([first, second], BATCH, together=False)["seconds"] == pytest.approx([0.6, 0.4])


@pytest.mark.parametrize("together", [True, False])
def test_batches_count_by_what_a_sample_takes(together):
    first = rank([10, 20, 20, 5], [SLOW_START, 3.0, 5.0, 1.0], [1.0] * 4)
    second = rank([10, 5, 5, 20], [SLOW_START, 1.0, 1.0, 4.0], [1.0] * 4)
    found = exchanges([first, second], BATCH, together=together)
    kept = 3 if together else 2  # five samples are few for the first rank, not for all in that step
    assert found["batch_seconds"] == pytest.approx([6.0 / 3 if together else 4.0 / 2, 2.0])
    assert found["batch_ratios"] == [[0.75, 1.25, 1.0][:kept], [1.0, 1.0, 1.0]]


def test_the_last_batches_of_epochs_are_left_out():
    """A batch of three takes nearly as long as one of ten."""
    first = rank([10, 10, 3, 10], [SLOW_START, 2.0, 1.5, 2.0], [9.0, 1.0, 8.0, 1.0])
    second = rank([10, 10, 2, 10], [SLOW_START, 4.0, 3.0, 4.0], [9.0, 1.0, 8.0, 1.0])
    expected = {"seconds": [1.0, 1.0], "batch_seconds": [2.0, 4.0], "batch_ratios": [[1.0, 1.0]] * 2}
    for together in (True, False):
        assert exchanges([first, second], BATCH, together=together) == expected


@pytest.mark.parametrize("together", [True, False])
def test_where_there_is_but_one_step_it_counts(together):
    alone = rank([5], [1.0], [3.0])
    expected = {"seconds": [3.0], "batch_seconds": [2.0], "batch_ratios": [[1.0]]}
    assert exchanges([alone], BATCH, together=together) == expected
