"""`DynamicSampler` with a parameter server: rank 0 deals batches, and fast ranks take more of them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest
import torch
from real_ranks import on_ranks
from thread_ranks import SECONDS, ThreadRank, on_thread_ranks
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gradsieve_hvd
from gradsieve.errors import ConfigurationError, RankMismatch

SAMPLES, BATCH = 90, 8
MODES = ("asp", "ssp", "dssp", "dasp")


class Seen(nn.Module):
    """With the optimizer of `counting`, `times` is how often each sample has become weights."""

    def __init__(self) -> None:
        super().__init__()
        self.times = nn.Parameter(torch.zeros(SAMPLES))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        return -self.times[places].mean()


def counting(ranks: int) -> Any:
    return lambda model: torch.optim.SGD(model.parameters(), lr=ranks * BATCH)


def loader_of(optimizer: Any, workers: int = 0, **options: Any) -> tuple[Any, Any]:
    sampler = gradsieve_hvd.DynamicSampler(range(SAMPLES), optimizer, BATCH, seed=3, **options)
    data = TensorDataset(torch.arange(SAMPLES))
    return sampler, DataLoader(data, batch_sampler=sampler, num_workers=workers)


def step(model: nn.Module, optimizer: Any, places: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(places).backward()
    optimizer.step()


def on_ranks_that_count(ranks: int, work: Any, mode: str = "asp", **options: Any) -> list[Any]:
    asked = {"model": Seen(), "optimizer": counting(ranks), "exchange": "dense", "mode": mode, **options}
    return on_thread_ranks(ranks, work, **asked)


@pytest.mark.parametrize("mode", MODES)
def test_each_sample_is_dealt_once_in_an_epoch_and_counts_as_much_as_any_other(mode: str) -> None:
    epochs = 3

    def train(rank: ThreadRank) -> Any:
        sampler, loader = loader_of(rank.optimizer)
        used: Counter[int] = Counter()
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for (places,) in loader:
                step(rank.model, rank.optimizer, places)
                used.update(places.tolist())
        rank.optimizer.finish()
        return used, rank.optimizer.samples_seen, rank.model.times.detach()

    ends = on_ranks_that_count(3, train, mode)
    assert sum((used for used, _, _ in ends), Counter()) == dict.fromkeys(range(SAMPLES), epochs)
    assert [seen for _, seen, _ in ends] == [epochs * SAMPLES] * 3
    if mode != "dasp":  # which damps what comes late
        assert all(torch.equal(times, torch.full((SAMPLES,), float(epochs))) for _, _, times in ends)


def test_a_fast_rank_takes_more() -> None:
    def train(rank: ThreadRank) -> int:
        _, loader = loader_of(rank.optimizer)
        taken = 0
        for (places,) in loader:
            if rank.rank:
                time.sleep(0.1)
            step(rank.model, rank.optimizer, places)
            taken += 1
        rank.optimizer.finish()
        return taken

    fast, slow = on_ranks_that_count(2, train)
    assert fast + slow == -(-SAMPLES // BATCH)
    assert fast > slow


EPOCHS = 6


def train_unevenly(rank: ThreadRank) -> tuple[list[int], list[float]]:
    """Return the sizes of a rank's batches in some epochs, of which rank 1 takes eight times as long for a
    sample as rank 0, and its shares.
    """
    sampler, loader = loader_of(rank.optimizer)
    sizes, shares = [], []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for (places,) in loader:
            time.sleep((0.008 if rank.rank else 0.001) * len(places))
            step(rank.model, rank.optimizer, places)
            sizes.append(len(places))
            shares.append(rank.optimizer.stats().share)
    rank.optimizer.finish()
    return sizes, shares


def test_in_dasp_the_batches_of_fast_ranks_are_larger() -> None:
    (fast, shares_fast), (slow, shares_slow) = on_ranks_that_count(2, train_unevenly, "dasp")
    assert sum(fast) + sum(slow) == EPOCHS * SAMPLES
    assert fast[0] == slow[0] == BATCH
    assert max(fast) > 1.2 * BATCH
    assert min(slow) < 0.8 * BATCH
    # Afterwards one has left, and the other is as fast as all that are left.
    assert max(shares_fast) > 1.2
    assert min(shares_slow) < 0.8


@pytest.mark.parametrize(("mode", "options"), [("dasp", {"equal_batches": True}), ("ssp", {})])
def test_batches_are_equal_where_that_is_asked_for_and_in_other_modes(mode: str, options: Any) -> None:
    ends = on_ranks_that_count(2, train_unevenly, mode, **options)
    sizes = [size for of_rank, _ in ends for size in of_rank]
    assert sum(sizes) == EPOCHS * SAMPLES
    assert sorted({*sizes}) == [SAMPLES % BATCH, BATCH]
    assert {share for _, shares in ends for share in shares} == {1.0}


def test_batches_that_a_program_makes_itself_are_expected_to_be_equal() -> None:
    def train(rank: ThreadRank) -> float:
        for _ in range(10):
            time.sleep(0.04 if rank.rank else 0.01)
            rank.optimizer.zero_grad()
            rank.model(torch.arange(BATCH)).backward()
            rank.optimizer.step(samples=BATCH)
        rank.optimizer.finish()
        return float(rank.optimizer.stats().share)

    assert on_ranks_that_count(2, train, "dasp") == [1.0, 1.0]


def test_what_a_rank_leaves_behind_is_used_when_it_or_another_asks_again() -> None:
    def train(rank: ThreadRank) -> torch.Tensor:
        _, loader = loader_of(rank.optimizer)
        for taken, (places,) in enumerate(loader):
            if rank.rank == 0 and taken == 1:
                break
            step(rank.model, rank.optimizer, places)
        if rank.rank == 0:
            for (places,) in loader:
                step(rank.model, rank.optimizer, places)
        rank.optimizer.finish()
        return rank.model.times.detach()

    # In "ssp" rank 1 cannot have used all of the epoch before rank 0's second batch.
    assert torch.equal(on_ranks_that_count(2, train, "ssp")[0], torch.ones(SAMPLES))


def test_an_epoch_without_a_number_is_followed_by_another() -> None:
    def train(rank: ThreadRank) -> torch.Tensor:
        _, loader = loader_of(rank.optimizer, shuffle=False)
        for _ in range(2):
            for (places,) in loader:
                step(rank.model, rank.optimizer, places)
        rank.optimizer.finish()
        return rank.model.times.detach()

    assert torch.equal(on_ranks_that_count(2, train)[0], torch.full((SAMPLES,), 2.0))


@pytest.mark.parametrize("mode", ["asp", "ssp", "dssp"])
def test_a_checkpoint_has_the_samples_that_its_weights_have_used(mode: str) -> None:
    """What other ranks had been dealt by then, of lower places, is dealt again."""
    has_saved = threading.Event()

    def train(rank: ThreadRank, state: Any = None) -> Any:
        sampler, loader = loader_of(rank.optimizer)
        if state:
            rank.model.load_state_dict(state["model"])
            sampler.load_state_dict(state["sampler"])
        saved = None
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for (places,) in loader:
                if rank.rank:
                    assert has_saved.wait(SECONDS)
                step(rank.model, rank.optimizer, places)
                if not rank.rank and not has_saved.is_set():
                    with rank.optimizer.consistent(state=True):
                        model = {name: each.clone() for name, each in rank.model.state_dict().items()}
                        saved = {"model": model, "sampler": sampler.state_dict()}
                    has_saved.set()
        rank.optimizer.finish()
        return saved, rank.optimizer.samples_seen, rank.model.times.detach()

    state = on_ranks_that_count(3, train, mode)[0][0]
    assert state["sampler"]["samples_seen"] == state["sampler"]["used"] == BATCH
    assert state["model"]["times"].sum() == BATCH
    for _, seen, times in on_ranks_that_count(2, lambda rank: train(rank, state), mode):
        assert seen == 2 * SAMPLES
        assert torch.equal(times, torch.full((SAMPLES,), 2.0))


def test_ranks_whose_samples_differ_are_told_so() -> None:
    def train(rank: ThreadRank) -> None:
        sampler = gradsieve_hvd.DynamicSampler(range(SAMPLES), rank.optimizer, BATCH, seed=rank.rank)
        with pytest.raises(RankMismatch, match="deals other samples than the rank that began: seed is"):  # noqa: PT012
            for places in sampler:
                step(rank.model, rank.optimizer, torch.tensor(places))
            rank.optimizer.finish()

    on_ranks_that_count(2, train)


def test_steps_are_taken_one_for_each_batch() -> None:
    def train(rank: ThreadRank) -> None:
        sampler, loader = loader_of(rank.optimizer)
        with pytest.raises(ConfigurationError, match="known within"):
            sampler.state_dict()
        (places,) = next(iter(loader))
        with pytest.raises(ConfigurationError, match="one step for each batch"):
            rank.optimizer.step(samples=BATCH - 1)
        step(rank.model, rank.optimizer, places)
        with pytest.raises(ConfigurationError, match="without a batch"):
            step(rank.model, rank.optimizer, places)
        with pytest.raises(ConfigurationError, match="before the first step"):
            sampler.load_state_dict({"epoch": 0, "used": 0, "samples": SAMPLES, "samples_seen": 0})
        rank.optimizer.finish()
        with pytest.raises(ConfigurationError, match=r"finish\(\) was called"):
            next(iter(loader))

    on_ranks_that_count(2, train)


@pytest.mark.parametrize("mode", [*MODES, "bsp"])
@pytest.mark.parametrize("samples", ["dealt", "equal parts"])
def test_ranks_may_wait_for_each_other_at_the_end_of_an_epoch(mode: str, samples: str) -> None:
    """As in an all-reduce of the loss: whoever is there first pushes nothing until all are."""
    meets, epochs = threading.Barrier(3), 3

    def train(rank: ThreadRank) -> int:
        sampler, loader = (
            loader_of(rank.optimizer) if samples == "dealt" else (None, [(torch.arange(8),)] * 6)
        )
        for epoch in range(epochs):
            if sampler is not None:
                sampler.set_epoch(epoch)
            for (places,) in loader:
                time.sleep(0.03 if rank.rank == 2 else 0.004)
                step(rank.model, rank.optimizer, places)
            meets.wait(SECONDS)
        rank.optimizer.finish()
        return int(rank.optimizer.samples_seen)

    seen = on_ranks_that_count(3, train, mode)
    if samples == "dealt":
        assert seen == [epochs * SAMPLES] * 3


@on_ranks
def test_real_ranks_are_dealt_each_sample_once_while_their_loaders_prefetch(hvd: Any) -> None:
    if hvd.mpi_enabled():
        from gradsieve_hvd.transport.mpi import MpiTransport

        count_samples_over(MpiTransport(), hvd)
        return
    from gloo_group import gloo

    from gradsieve_hvd.transport.torch_distributed import TorchDistributedTransport

    with gloo(hvd):
        count_samples_over(TorchDistributedTransport(), hvd)
        hvd.barrier()


def count_samples_over(transport: Any, hvd: Any) -> None:
    model = Seen()
    optimizer = gradsieve_hvd.DistributedOptimizer(
        counting(hvd.size())(model),
        model.named_parameters(),
        transport=transport,
        mode="asp",
        exchange="dense",
    )
    sampler, loader = loader_of(optimizer, workers=2)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (places,) in loader:
            step(model, optimizer, places)
    optimizer.finish()
    assert torch.equal(model.times.detach(), torch.full((SAMPLES,), 2.0))
