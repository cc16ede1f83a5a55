"""Every sample is dealt to one rank once in an epoch, whatever shares, prefetching and interruptions do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

import gradsieve_hvd
from gradsieve.errors import ConfigurationError
from gradsieve_hvd.optimizer.sampling import BatchCounter, Dealing, apportioned

SHARES = st.floats(1 / 8, 3.0)


class Rank:
    """A rank's sampler, and a loader that prefetches ``depth`` batches."""

    def __init__(self, rank: int, ranks: int, samples: int, batch_size: int, depth: int = 0) -> None:
        self.counter = BatchCounter(rank, ranks)
        self.sampler = gradsieve_hvd.DynamicSampler(
            range(samples), SimpleNamespace(batches=self.counter), batch_size, seed=7
        )
        self.depth = depth
        self.restart()

    def restart(self) -> None:
        self.batches, self.fetched = iter(self.sampler), []
        self._fetch(self.depth)

    def _fetch(self, batches: int) -> None:
        for _, batch in zip(range(batches), self.batches, strict=False):
            self.fetched.append(batch)

    def next(self) -> list[int] | None:
        self._fetch(1)
        return self.fetched.pop(0) if self.fetched else None

    def step(self) -> None:
        self.counter.took()
        self.counter.applied()


def change(ranks: list[Rank], shares: tuple[float, ...]) -> None:
    first = max(rank.sampler.handed_out for rank in ranks)
    for rank in ranks:
        rank.counter.change(first, shares)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_each_sample_is_used_once_in_an_epoch_over_all_ranks(data):
    count = data.draw(st.integers(1, 4))
    samples = data.draw(st.integers(count, 90))
    size = data.draw(st.integers(1, 6))
    ranks = [Rank(rank, count, samples, size, data.draw(st.integers(0, 5))) for rank in range(count)]
    seen = 0
    for epoch in range(2):
        for rank in ranks:
            rank.sampler.set_epoch(epoch)
            rank.restart()
        used: list[int] = []
        for _ in range(len(ranks[0].sampler)):
            batches = [rank.next() for rank in ranks]
            assert all(batches)
            sizes = ranks[0].sampler.sizes(ranks[0].counter.taken)
            assert [len(batch) for batch in batches] == list(sizes)
            used += [place for batch in batches for place in batch]
            for rank in ranks:
                rank.step()
            if data.draw(st.integers(0, 3)) == 0:
                change(ranks, tuple(data.draw(SHARES) for _ in ranks))
            if data.draw(st.integers(0, 5)) == 0:
                for rank in ranks:
                    rank.restart()  # what was prefetched is dealt again
        assert sorted(used) == list(range(samples))
        assert [rank.next() for rank in ranks if rank.counter.taken % len(rank.sampler)] == []
        seen += samples
        assert all(rank.counter.samples_seen == seen for rank in ranks)


@settings(max_examples=200, deadline=None)
@given(shares=st.lists(SHARES, min_size=1, max_size=8), more=st.integers(0, 500))
def test_samples_are_apportioned_by_shares_and_nobody_gets_none(shares, more):
    total = len(shares) + more
    sizes = apportioned(total, shares)
    assert sum(sizes) == total
    assert min(sizes) >= 1
    whole = sum(shares)
    for size, share in zip(sizes, shares, strict=True):
        assert size <= total * share / whole + 1 + 1e-6
    if len(set(shares)) == 1:
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("samples", "totals"), [(24, [12, 12]), (27, [12, 12, 3]), (26, [12, 14]), (5, [5]), (3, [3])]
)
def test_the_last_batch_is_smaller_or_takes_what_would_leave_a_rank_without(samples, totals):
    dealing = Dealing(samples, ranks=3, batch_size=4)
    assert [dealing.total(number) for number in range(dealing.batches)] == totals
    with pytest.raises(ConfigurationError, match="2 samples cannot be dealt to 3 ranks"):
        Dealing(2, ranks=3, batch_size=4)


@pytest.mark.parametrize(("before", "after"), [(2, 2), (3, 2), (2, 3), (3, 1)])
def test_a_restored_state_deals_what_was_not_used_and_what_was_only_prefetched(before, after):
    used: list[int] = []
    ranks = [Rank(rank, before, 40, 3, depth=4) for rank in range(before)]
    for _ in range(3):
        used += [place for rank in ranks for place in rank.next() or ()]
        for rank in ranks:
            rank.step()
    state = ranks[0].sampler.state_dict()
    for _ in range(2):  # lost
        for rank in ranks:
            rank.next()
            rank.step()
    resumed = [Rank(rank, after, 40, 3, depth=2) for rank in range(after)]
    for rank in resumed:
        rank.sampler.load_state_dict(state)
        rank.sampler.set_epoch(0)
        rank.restart()
    change(resumed, (2.0, 0.5, 1.0)[:after])
    for _ in range(len(resumed[0].sampler)):
        used += [place for rank in resumed for place in rank.next() or ()]
        for rank in resumed:
            rank.step()
    assert sorted(used) == list(range(40))
    assert resumed[0].counter.samples_seen == 40
    assert resumed[0].sampler.state_dict()["used"] == 40


def test_ranks_that_change_go_on_with_what_the_epoch_has_left():
    ranks = [Rank(rank, 3, 40, 2, depth=2) for rank in range(3)]
    used = [place for rank in ranks for place in rank.next() or ()]
    for rank in ranks:
        rank.step()
    change(ranks, (0.5, 1.0, 2.0))
    left = [*ranks[1:], Rank(2, 3, 40, 2)]  # rank 0 is lost, and a new one begins
    left[2].sampler.load_state_dict(ranks[1].sampler.state_dict())
    for number, rank in enumerate(left):
        rank.counter.restart(number, 3)
        rank.restart()
        assert rank.counter.shares(0) == (1.0, 1.0, 1.0)
    for _ in range(len(left[0].sampler)):
        used += [place for rank in left for place in rank.next() or ()]
        for rank in left:
            rank.step()
    assert sorted(used) == list(range(40))


def test_an_epoch_that_has_less_than_a_sample_per_rank_left_is_over():
    state = {"epoch": 3, "used": 39, "samples": 40, "samples_seen": 159}
    rank = Rank(0, 2, 40, 5)
    rank.sampler.load_state_dict(state)
    assert rank.sampler.state_dict()["used"] == 40
    rank.sampler.set_epoch(4)
    assert len(list(rank.sampler)) == len(rank.sampler) == 4


def test_a_state_of_other_data_is_refused():
    state = Rank(0, 2, 40, 3).sampler.state_dict()
    with pytest.raises(ConfigurationError, match="data set of 40 samples, and this one has 41"):
        Rank(0, 2, 41, 3).sampler.load_state_dict(state)


def test_epochs_are_in_another_order_and_the_same_on_all_ranks():
    first, second = Rank(0, 2, 40, 20).sampler, Rank(1, 2, 40, 20).sampler
    halves = []
    for epoch in range(2):
        first.set_epoch(epoch)
        second.set_epoch(epoch)
        halves.append([next(iter(first)), next(iter(second))])
    assert halves[0] != halves[1]
    assert all(sorted(a + b) == list(range(40)) for a, b in halves)


def test_loaders_with_workers_that_prefetch_lose_and_repeat_nothing():
    dataset = TensorDataset(torch.arange(60))
    counters = [BatchCounter(rank, 2) for rank in range(2)]
    samplers = [
        gradsieve_hvd.DynamicSampler(dataset, SimpleNamespace(batches=each), 5, seed=1) for each in counters
    ]
    loaders = [DataLoader(dataset, batch_sampler=each, num_workers=2) for each in samplers]
    used: list[int] = []

    def train(steps: int) -> None:
        for number, batches in enumerate(zip(*loaders, strict=True), start=1):
            used.extend(place for (batch,) in batches for place in batch.tolist())
            first = max(each.handed_out for each in samplers)
            for counter in counters:
                counter.took()
                counter.change(first, (1.5, 0.5) if number % 2 else (0.4, 1.6))
            if number == steps:
                break

    train(2)
    assert samplers[0].handed_out > 2
    train(100)
    assert sorted(used) == list(range(60))


@pytest.mark.parametrize("settings", [{"batch_size": 0}, {"batch_size": 3, "seed": -1}])
def test_wrong_settings_are_refused(settings):
    with pytest.raises(ConfigurationError, match="DynamicSampler: batch_size="):
        gradsieve_hvd.DynamicSampler(range(9), SimpleNamespace(batches=BatchCounter(0, 2)), **settings)


def test_an_optimizer_that_counts_no_batches_is_refused():
    plain: Any = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(ConfigurationError, match=r"gradsieve_hvd\.DistributedOptimizer"):
        gradsieve_hvd.DynamicSampler(range(9), plain, 3)


@pytest.mark.parametrize("used", [40, 39])
def test_an_epoch_that_was_used_up_when_it_was_saved_ends_and_the_next_one_begins(used):
    """As a program does that committed in the last step of an epoch: its loop goes on with that epoch."""
    ranks = [Rank(rank, 2, 40, 5) for rank in range(2)]
    state = {"epoch": 3, "used": used, "samples": 40, "samples_seen": 159}
    dealt = []
    for rank in ranks:
        rank.sampler.load_state_dict(state)
        rank.counter.restart(rank.counter.rank, 2)
        assert len(rank.sampler) == 0
        for epoch in (3, 4):
            rank.sampler.set_epoch(epoch)
            for places in rank.sampler:
                dealt.append((epoch, places))
                rank.step()
        assert rank.sampler.state_dict()["used"] == 40
    assert sorted(place for _, places in dealt for place in places) == list(range(40))
    assert {epoch for epoch, _ in dealt} == {4}


def test_within_a_process_an_epoch_without_a_number_is_followed_by_another():
    rank = Rank(0, 1, 8, 2)
    for _ in range(2):
        rank.restart()
        taken = [place for places in iter(rank.next, None) for place in (places, rank.step())[0]]
        assert sorted(taken) == list(range(8))


@pytest.mark.parametrize("ends", ["another epoch", "a restored state"])
def test_an_iteration_of_an_epoch_that_was_left_is_not_gone_on_with(ends):
    rank = Rank(0, 1, 40, 5)
    outdated = rank.batches
    next(outdated)
    rank.step()
    if ends == "another epoch":
        rank.sampler.set_epoch(1)
    else:
        rank.sampler.load_state_dict({"epoch": 0, "used": 0, "samples": 40, "samples_seen": 0})
    with pytest.raises(ConfigurationError, match="use one loader at a time"):
        next(outdated)


def test_a_look_at_a_batch_amid_an_epoch_changes_nothing_of_it():
    """As a program does that shows images; shares change at batches that no loader has, nevertheless."""
    ranks = [Rank(rank, 2, 60, 5, depth=3) for rank in range(2)]
    used: list[int] = []
    for number in range(len(ranks[0].sampler)):
        used += [place for rank in ranks for place in rank.next() or ()]
        next(iter(ranks[0].sampler))
        change(ranks, (0.5, 1.5) if number % 2 else (1.5, 0.5))
        for rank in ranks:
            rank.step()
    assert sorted(used) == list(range(60))


def test_an_optimizer_has_one_sampler_and_the_earlier_one_says_so():
    rank = Rank(0, 1, 40, 5)
    validation = gradsieve_hvd.DynamicSampler(range(8), SimpleNamespace(batches=rank.counter), 2)
    with pytest.raises(ConfigurationError, match=r"another DynamicSampler.*make a plain DataLoader"):
        iter(rank.sampler)
    assert len(list(validation)) == 4


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_loader_that_would_make_batches_of_batches_is_refused(drop_last):
    sampler = Rank(0, 1, 40, 5).sampler
    data = TensorDataset(torch.arange(40))
    with pytest.raises(ConfigurationError, match="batch_sampler="):
        next(iter(DataLoader(data, sampler=sampler, batch_size=5, drop_last=drop_last)))
    (batch,) = next(iter(DataLoader(data, batch_sampler=sampler)))
    assert len(batch) == 5


@pytest.mark.parametrize("epoch", [-1, 1.0, "1", None, True])
def test_what_is_no_epochs_number_is_refused(epoch):
    sampler = Rank(0, 1, 40, 5).sampler
    with pytest.raises(ConfigurationError, match="set_epoch"):
        sampler.set_epoch(epoch)
    sampler.set_epoch(np.int64(2))
    assert sampler.state_dict()["epoch"] == 2
