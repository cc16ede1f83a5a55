"""Samples that are dealt to whoever asks: each is used once in an epoch, whatever ranks do."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsieve.errors import PayloadError, RankMismatch
from gradsieve_hvd.server.ranges import Ranges, count
from gradsieve_hvd.server.sample_ledger import SampleLedger

UNKNOWN = [None] * 8


def data(samples: int = 10, batch_size: int = 2, resume: Any = ()) -> dict[str, Any]:
    return {"samples": samples, "batch_size": batch_size, "resume": list(resume)}


@given(st.lists(st.integers(0, 30), unique=True), st.data())
def test_a_set_of_places_is_one_whatever_the_order_in_which_they_join_and_leave(places, data):
    ranges = Ranges()
    for place in places:
        ranges.add([(place, place + 1)])
    assert [each for pair in ranges.pairs for each in range(*pair)] == sorted(places)
    assert all(a[1] < b[0] for a, b in zip(ranges.pairs, ranges.pairs[1:], strict=False))
    missing = ranges.without(31)
    assert sorted(each for pair in missing.pairs for each in range(*pair)) == sorted({*range(31)} - {*places})
    if places:
        with pytest.raises(ValueError, match="cannot join"):
            ranges.add([(data.draw(st.sampled_from(places)), 40)])
    some = data.draw(st.integers(0, 40))
    taken = ranges.take(some)
    assert count(taken) == min(some, len(places))
    assert count(taken) + len(ranges) == len(places)
    ranges.add(taken)
    assert len(ranges) == len(places)


class Rank:
    """A rank whose loader has asked for ``depth`` batches before the first step."""

    def __init__(
        self, ledger: SampleLedger, rank: int, speed: int, depth: int, dealt: dict[str, Any]
    ) -> None:
        self.ledger, self.rank, self.speed, self.depth, self.data = ledger, rank, speed, depth, dealt
        self.iteration, self.turn, self.fetched, self.ended, self.gone = 0, -1, deque[Any](), True, False

    def begin(self, turn: int) -> None:
        self.iteration, self.turn, self.ended = self.iteration + 1, turn, False
        self.fetched.clear()
        for _ in range(self.depth):
            self.fetch()

    def fetch(self) -> None:
        if not self.ended:
            seconds = [float(1 + rank) for rank in range(len(self.ledger._held))]
            args = (self.rank, self.iteration, self.turn, self.turn, self.data, seconds)
            places = self.ledger.deal(*args)
            self.ended = not places
            self.fetched.extend([places] if places else [])


@settings(max_examples=80, deadline=None)
@given(drawn=st.data())
def test_each_sample_is_used_once_in_an_epoch_at_most_and_else_left_out_by_who_broke_off(drawn):
    ranks_count, epochs = drawn.draw(st.integers(1, 4)), 3
    samples = drawn.draw(st.integers(1, 60))
    dealt = data(samples, drawn.draw(st.integers(1, 7)))
    ledger = SampleLedger(ranks_count)
    ranks = [
        Rank(ledger, rank, drawn.draw(st.integers(1, 8)), drawn.draw(st.integers(1, 5)), dealt)
        for rank in range(ranks_count)
    ]
    breaks = drawn.draw(st.booleans())
    used: Counter[tuple[int, int]] = Counter()
    pushes, waiting = 0, deque[int]()
    while alive := [rank for rank in ranks if not rank.gone]:
        rank = drawn.draw(st.sampled_from([each for each in alive for _ in range(each.speed)]))
        if rank.ended and not rank.fetched:
            if rank.turn + 1 == epochs:
                ledger.left(rank.rank)
                rank.gone = True
            else:
                rank.begin(rank.turn + 1)
            continue
        if breaks and drawn.draw(st.integers(0, 7)) == 0:
            if drawn.draw(st.booleans()):
                rank.begin(rank.turn)  # the loader is made again
            else:
                rank.fetched.clear()
                rank.ended = True  # the loop is left, with what was prefetched
            continue
        rank.fetch()
        used.update((rank.turn, place) for pair in rank.fetched.popleft() for place in range(*pair))
        ledger.pushed(rank.rank, pushes)
        waiting.append(pushes)
        pushes += 1
        while waiting and drawn.draw(st.booleans()):
            ledger.decided(waiting.popleft())
    for number in waiting:
        ledger.decided(number)
    assert set(used.values()) <= {1}  # nothing at all, if whoever asked broke off each time
    assert len(used) + ledger.left_out == epochs * samples
    if not breaks:
        assert ledger.left_out == 0
    assert ledger.state() == []  # nothing is kept of epochs that are over


@settings(max_examples=80, deadline=None)
@given(drawn=st.data())
def test_a_training_that_goes_on_from_a_state_uses_what_that_has_not_used(drawn):
    samples, size, workers = drawn.draw(st.integers(1, 40)), drawn.draw(st.integers(1, 7)), 3
    ledger = SampleLedger(workers)
    used: set[int] = set()
    for number in range(drawn.draw(st.integers(1, 12))):
        rank = drawn.draw(st.integers(0, workers - 1))
        places = ledger.deal(rank, 1, 0, 5, data(samples, size), UNKNOWN)
        if places and drawn.draw(st.booleans()):
            first = ledger._held[rank][0][1]
            ledger.pushed(rank, number)
            if drawn.draw(st.booleans()):  # else it waits, and is lost with the training
                ledger.decided(number)
                used |= {place for pair in first for place in range(*pair)}
    state = ledger.state()
    restored = SampleLedger(2)
    rest: list[int] = []
    while places := restored.deal(0, 1, 0, 5, data(samples, size, state), UNKNOWN):
        rest += [place for pair in places for place in range(*pair)]
    assert sorted([*rest, *used]) == list(range(samples))


def test_what_a_rank_has_not_used_is_dealt_to_others_of_its_epoch_first():
    ledger = SampleLedger(2)
    ledger.deal(0, 1, 0, 0, data(), UNKNOWN)
    assert ledger.deal(1, 1, 0, 0, data(), UNKNOWN) == ((2, 4),)
    assert ledger.deal(0, 2, 1, 1, data(), UNKNOWN) == ((0, 2),)  # of the next epoch
    assert ledger.deal(1, 1, 0, 0, data(), UNKNOWN) == ((0, 2),)


def test_a_batch_is_filled_from_what_has_come_back_in_pieces():
    ledger = SampleLedger(2)
    resumed = [[0, [[1, 4], [5, 9]]]]
    assert ledger.deal(0, 1, 0, 0, data(resume=resumed), UNKNOWN) == ((0, 1), (4, 5))
    assert ledger.deal(1, 1, 0, 0, data(resume=resumed), UNKNOWN) == ((9, 10),)
    assert ledger.deal(1, 1, 0, 0, data(resume=resumed), UNKNOWN) == ()


def test_near_the_end_a_slow_rank_is_dealt_no_batch_that_others_would_end_sooner():
    ledger = SampleLedger(2)
    seconds = [1.0, 4.0]
    for _ in range(2):
        ledger.deal(0, 1, 0, 0, data(), seconds)
    assert ledger.deal(1, 1, 0, 0, data(), seconds)
    # Two batches are left. Rank 1 would end one after 8 s, and rank 0 both of them after 4 s.
    assert ledger.deal(1, 1, 0, 0, data(), seconds) == ()
    assert ledger.deal(0, 1, 0, 0, data(), seconds)
    assert ledger.deal(0, 1, 0, 0, data(), seconds)


def test_what_is_left_is_dealt_to_a_slow_rank_when_nobody_else_takes_any():
    ledger = SampleLedger(2)
    seconds = [1.0, 9.0]
    assert ledger.deal(0, 1, 0, 0, data(), seconds)
    assert ledger.deal(0, 2, 1, 1, data(), seconds)  # it has gone on to the next epoch
    for _ in range(5):
        assert ledger.deal(1, 1, 0, 0, data(), seconds)
    assert ledger.deal(1, 1, 0, 0, data(), seconds) == ()


def test_ranks_with_other_data_or_in_another_epoch_are_told_which_ones():
    ledger = SampleLedger(2)
    ledger.deal(0, 1, 0, 0, data(), UNKNOWN)
    with pytest.raises(RankMismatch, match=r"rank 1 deals other samples .*samples is 12"):
        ledger.deal(1, 1, 0, 0, data(12), UNKNOWN)
    with pytest.raises(RankMismatch, match="rank 1 begins epoch 3 where others have begun 0"):
        ledger.deal(1, 1, 0, 3, data(), UNKNOWN)


def test_nonsense_is_refused():
    ledger = SampleLedger(1)
    with pytest.raises(PayloadError, match="was not dealt"):
        ledger.pushed(0, 0)
    ledger.deal(0, 2, 1, 1, data(), UNKNOWN)
    for wrong in ((1, 1), (3, 0)):
        with pytest.raises(PayloadError, match="that it has left"):
            ledger.deal(0, *wrong, 1, data(), UNKNOWN)
