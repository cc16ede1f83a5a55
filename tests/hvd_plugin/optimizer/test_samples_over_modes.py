"""An epoch that begins in one mode goes on in another: each sample becomes weights once, whoever deals it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from thread_ranks import ThreadRank, on_thread_ranks
from torch import nn

import gradsieve_hvd
from gradsieve.errors import ConfigurationError

RANKS, BATCH = 3, 8
SAMPLES = 16 * RANKS * BATCH


class Seen(nn.Module):
    """With the rate of `on_ranks_that_count`, `times` is how often each sample has become weights."""

    def __init__(self) -> None:
        super().__init__()
        self.times = nn.Parameter(torch.zeros(SAMPLES))


def on_ranks_that_count(work: Any, ranks: int = RANKS, **options: Any) -> list[Any]:
    def counting(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=ranks * BATCH)

    return on_thread_ranks(
        ranks,
        work,
        model=Seen(),
        optimizer=counting,
        exchange="dense",
        mode="auto",
        parameter_server=True,
        **options,
    )


def prefetched(sampler: Iterable[list[int]], depth: int) -> Iterator[list[int]]:
    """Yield batches ``depth`` behind those that were handed out, as a loader with workers does."""
    fetched = deque[list[int]]()
    for batch in sampler:
        fetched.append(batch)
        if len(fetched) > depth:
            yield fetched.popleft()
    yield from fetched


def sampler_of(rank: ThreadRank) -> Any:
    return gradsieve_hvd.DynamicSampler(range(SAMPLES), rank.optimizer, BATCH, seed=1)


def step(rank: ThreadRank, places: list[int]) -> None:
    rank.optimizer.zero_grad()
    (-rank.model.times[places].mean()).backward()
    rank.optimizer.step()


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_each_sample_is_used_once_in_an_epoch_through_changes_of_the_mode(depth: int) -> None:
    """Ranks prefetch differently; within epochs the mode changes to one with a server, and to another."""

    def train(rank: ThreadRank) -> Any:
        sampler, optimizer = sampler_of(rank), rank.optimizer
        for epoch in range(5):
            sampler.set_epoch(epoch)
            for taken, places in enumerate(prefetched(sampler, depth * rank.rank)):
                step(rank, places)
                if (epoch, taken) == (1, 2):
                    optimizer.change_mode("ssp")
                if (epoch, taken) == (2, 1):
                    optimizer.change_mode("asp")
            if epoch == 3:
                optimizer.change_mode("synchronous")
        return rank.model.times.detach(), optimizer.samples_seen

    for times, seen in on_ranks_that_count(train):
        assert torch.equal(times, torch.full((SAMPLES,), 5.0))
        assert seen == 5 * SAMPLES


@pytest.mark.parametrize("equal_batches", [False, True])
def test_in_dasp_batches_follow_speeds_until_the_mode_changes_again(equal_batches: bool) -> None:
    def train(rank: ThreadRank) -> dict[str, set[int]]:
        sampler, optimizer = sampler_of(rank), rank.optimizer
        sizes: dict[str, set[int]] = {}
        for mode in ("dasp", "synchronous"):
            optimizer.change_mode(mode)
            for epoch in (1, 2):
                sampler.set_epoch(epoch if mode == "dasp" else 2 + epoch)
                for places in sampler:
                    time.sleep((0.004 if rank.rank else 0.001) * len(places))
                    step(rank, places)
                    sizes.setdefault(mode, set()).add(len(places))
        optimizer.join()
        return sizes

    for sizes in on_ranks_that_count(train, equal_batches=equal_batches):
        assert sizes["synchronous"] == {BATCH}
        assert (sizes["dasp"] == {BATCH}) is equal_batches


def test_a_mode_without_a_server_waits_for_loaders_to_end() -> None:
    def train(rank: ThreadRank) -> torch.Tensor:
        sampler, optimizer = sampler_of(rank), rank.optimizer
        optimizer.change_mode("ssp")
        for taken, places in enumerate(sampler):
            step(rank, places)
            if taken == 1:
                with pytest.raises(ConfigurationError, match="amid an epoch"):
                    optimizer.change_mode("synchronous")
        assert optimizer.mode == "ssp"
        optimizer.change_mode("synchronous")
        for places in sampler:
            step(rank, places)
        return rank.model.times.detach()

    for times in on_ranks_that_count(train):
        assert torch.equal(times, torch.full((SAMPLES,), 2.0))


def test_what_ranks_have_left_of_an_epoch_is_dealt_in_a_mode_without_a_server() -> None:
    def train(rank: ThreadRank) -> torch.Tensor:
        sampler, optimizer = sampler_of(rank), rank.optimizer
        optimizer.change_mode("ssp")
        batches = iter(sampler)
        for _ in range(2):
            step(rank, next(batches))
        batches.close()
        optimizer.change_mode("synchronous")
        for places in sampler:
            step(rank, places)
        return rank.model.times.detach()

    for times in on_ranks_that_count(train):
        assert torch.equal(times, torch.ones(SAMPLES))


@pytest.mark.parametrize("after", ["synchronous", "asp"])
def test_a_checkpoint_of_one_mode_goes_on_in_another(after: str) -> None:
    def train(rank: ThreadRank) -> Any:
        sampler, optimizer = sampler_of(rank), rank.optimizer
        optimizer.change_mode("ssp")
        for taken, places in enumerate(sampler):
            step(rank, places)
            if taken == 1:
                break
        with optimizer.consistent():
            return sampler.state_dict(), rank.model.times.detach().clone()

    def go_on(rank: ThreadRank) -> torch.Tensor:
        sampler = sampler_of(rank)
        rank.model.times.data.copy_(saved[0][1])
        sampler.load_state_dict(saved[0][0])
        rank.optimizer.change_mode(after)
        for places in sampler:
            step(rank, places)
        if after == "asp":
            rank.optimizer.change_mode("synchronous")
        assert rank.optimizer.samples_seen == SAMPLES
        return rank.model.times.detach()

    saved = on_ranks_that_count(train)
    assert saved[0][0] == saved[1][0] == saved[2][0]
    assert saved[0][0]["used"] == int(saved[0][1].sum()) == 2 * RANKS * BATCH
    for times in on_ranks_that_count(go_on):
        assert torch.equal(times, torch.ones(SAMPLES))
