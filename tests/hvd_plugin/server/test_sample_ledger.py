"""Samples that are dealt to whoever asks: each is used once in an epoch, whatever ranks do."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsieve.errors import PayloadError, RankMismatch
from gradsieve_hvd.server.ranges import Ranges, count
from gradsieve_hvd.server.sample_ledger import SampleLedger, Speed

UNKNOWN = [Speed()] * 8


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
    """A rank whose loader has asked for ``depth`` batches before the first step. speeds: returns all ranks'
    at a time.
    """

    def __init__(
        self, ledger: SampleLedger, rank: int, speed: int, depth: int, dealt: dict[str, Any], speeds: Any
    ) -> None:
        self.ledger, self.rank, self.speed, self.depth, self.data = ledger, rank, speed, depth, dealt
        self.speeds = speeds
        self.iteration, self.turn, self.fetched, self.ended, self.gone = 0, -1, deque[Any](), True, False

    def begin(self, turn: int) -> None:
        self.iteration, self.turn, self.ended = self.iteration + 1, turn, False
        self.fetched.clear()
        for _ in range(self.depth):
            self.fetch()

    def fetch(self) -> None:
        if not self.ended:
            args = (self.rank, self.iteration, self.turn, self.turn, self.data, self.speeds())
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
    shares = st.sampled_from([0.125, 0.3, 1.0, 1.7, 3.0]) if drawn.draw(st.booleans()) else st.just(1.0)

    def speeds() -> list[Speed]:
        return [Speed(drawn.draw(shares), float(1 + rank)) for rank in range(ranks_count)]

    ranks = [
        Rank(ledger, rank, drawn.draw(st.integers(1, 8)), drawn.draw(st.integers(1, 5)), dealt, speeds)
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
        share = drawn.draw(st.sampled_from([0.125, 1.0, 3.0]))
        places = ledger.deal(rank, 1, 0, 5, data(samples, size), [Speed(share)] * workers)
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
    speeds = [Speed(1.0, 1.0), Speed(1.0, 4.0)]
    for _ in range(2):
        ledger.deal(0, 1, 0, 0, data(), speeds)
    assert ledger.deal(1, 1, 0, 0, data(), speeds)
    # Two batches are left. Rank 1 would end one after 8 s, and rank 0 both of them after 4 s.
    assert ledger.deal(1, 1, 0, 0, data(), speeds) == ()
    assert ledger.deal(0, 1, 0, 0, data(), speeds)
    assert ledger.deal(0, 1, 0, 0, data(), speeds)


def test_a_batch_is_as_large_as_the_ranks_share_when_it_is_dealt_and_one_sample_at_least():
    ledger = SampleLedger(2)
    large, small = [Speed(2.5)] * 2, [Speed(0.1)] * 2
    assert ledger.deal(0, 1, 0, 0, data(20), UNKNOWN) == ((0, 2),)
    assert ledger.deal(0, 1, 0, 0, data(20), large) == ((2, 7),)
    assert ledger.deal(1, 1, 0, 0, data(20), small) == ((7, 8),)
    assert ledger.pushed(0, 0) == (1.0, 2.5)  # the next one is known, whatever the share is now
    assert ledger.pushed(0, 2) == (2.5, None)


@pytest.mark.parametrize(
    ("share", "dealt"),
    [
        pytest.param(1.0, False, id="a nominal batch: 4 s, and the fast rank ends all after 3 s"),
        pytest.param(0.5, True, id="half of one: 2 s, and the fast rank has ended one of three"),
    ],
)
def test_near_the_end_a_slow_rank_is_dealt_a_batch_that_is_small_enough(share, dealt):
    ledger = SampleLedger(2)
    speeds = [Speed(1.0, 1.0), Speed(share, 4.0)]
    ledger.deal(0, 1, 0, 0, data(8), speeds)
    ledger.pushed(0, 0)
    assert bool(ledger.deal(1, 1, 0, 0, data(8), speeds)) is dealt


@pytest.mark.parametrize(("samples", "dealt"), [(12, False), (14, True)])
def test_near_the_end_the_size_of_others_batches_counts(samples, dealt):
    ledger = SampleLedger(2)
    speeds = [Speed(3.0, 0.5), Speed(1.0, 4.0)]
    assert ledger.deal(0, 1, 0, 0, data(samples), speeds) == ((0, 6),)
    # Rank 0 ends what it has after 1.5 s, and six samples more after 3 s, but not twelve before 4 s.
    assert bool(ledger.deal(1, 1, 0, 0, data(samples), speeds)) is dealt


def test_what_is_left_is_dealt_to_a_slow_rank_when_nobody_else_takes_any():
    ledger = SampleLedger(2)
    speeds = [Speed(1.0, 1.0), Speed(1.0, 9.0)]
    assert ledger.deal(0, 1, 0, 0, data(), speeds)
    assert ledger.deal(0, 2, 1, 1, data(), speeds)  # it has gone on to the next epoch
    for _ in range(5):
        assert ledger.deal(1, 1, 0, 0, data(), speeds)
    assert ledger.deal(1, 1, 0, 0, data(), speeds) == ()


def test_what_all_ranks_leave_behind_is_said(caplog):
    ledger = SampleLedger(2)
    with caplog.at_level("INFO", "gradsieve.server"):
        for rank in (0, 1):
            ledger.deal(rank, 1, 0, 7, data(), UNKNOWN)
            ledger.pushed(rank, rank)
            ledger.decided(rank)
        ledger.deal(0, 2, 1, 8, data(), UNKNOWN)
        assert caplog.messages == []  # rank 1 may still use it
        ledger.deal(1, 2, 1, 8, data(), UNKNOWN)
    assert caplog.messages == ["6 samples of epoch 7 are left out: its last rank left it early"]
    assert ledger.left_out == 6


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
