"""Batches by measured speed: gradients are those of all samples, shares change on all ranks at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from real_ranks import on_ranks
from thread_ranks import ThreadRank, on_thread_ranks
from torch.nn import functional as F
from training import assert_equal_on_all_ranks, assert_same, laplace, lossless, perceptron, sgd, weights

import gradsieve_hvd
from gradsieve.errors import ConfigurationError

SAMPLES = 120
SPEEDS = (100.0, 100.0, 200.0, 400.0)  # samples per second


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 60, generator=generator)
    return inputs, torch.randint(10, (SAMPLES,), generator=generator)


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def timed_by(clock: FakeClock, optimizer: Any, exchanging: float = 0.0) -> None:
    """Have steps be timed by a clock, of which so many seconds are selecting and encoding."""
    balance = optimizer.synchronizer.balance
    balance.clock, balance.exchanging = clock, lambda: exchanging


def train(rank: Any, sampler: Any, epochs: int, speeds: Any = None) -> list[list[int]]:
    """Return the sizes of this rank's batches; a batch takes as long as ``speeds`` says."""
    inputs, targets = data()
    sizes = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in sampler:
            rank.optimizer.zero_grad()
            F.cross_entropy(rank.model(inputs[batch]), targets[batch]).backward()
            if speeds is not None:
                rank.optimizer.synchronizer.balance.clock.now += len(batch) / speeds[rank.rank]
            rank.optimizer.step()
            sizes.append(len(batch))
    return sizes


def balanced(ranks: int, work: Any, **options: Any) -> list[Any]:
    given = {"compression": lossless(), "optimizer": sgd, "mode": "balanced", "announce_every": 2, **options}
    return on_thread_ranks(ranks, work, **given)


def test_gradients_are_those_of_all_samples_together():
    def work(rank: ThreadRank) -> Any:
        sampler = gradsieve_hvd.DynamicSampler(range(SAMPLES), rank.optimizer, 4, seed=3)
        rank.optimizer.batches.change(1, (0.5, 2.0, 0.5))
        inputs, targets = data()
        gradients = []
        for batch in sampler:
            rank.optimizer.zero_grad()
            F.cross_entropy(rank.model(inputs[batch]), targets[batch]).backward()
            rank.optimizer.synchronize()
            gradients.append((batch, rank.gradients(), weights(rank.model)))
            with rank.optimizer.skip_synchronize():
                rank.optimizer.step()
        return gradients

    results = balanced(3, work, exchange="dense")
    inputs, targets = data()
    for step in zip(*results, strict=True):
        together = [place for batch, _, _ in step for place in batch]
        model = perceptron()
        with torch.no_grad():
            for parameter, weight in zip(model.parameters(), step[0][2], strict=True):
                parameter.copy_(weight)
        F.cross_entropy(model(inputs[together]), targets[together]).backward()
        for _, gradients, _ in step:
            assert_same(gradients, step[0][1])
            assert_same(gradients, [p.grad for p in model.parameters()], rtol=1e-5, atol=1e-7)
    assert [len(batch) for batch, _, _ in results[1][:2]] == [4, 8]


@pytest.mark.parametrize("exchange", ["dense", "allgather"])
def test_shares_follow_speeds_and_all_ranks_end_alike(exchange):
    def work(rank: ThreadRank) -> Any:
        timed_by(FakeClock(), rank.optimizer)
        sampler = gradsieve_hvd.DynamicSampler(range(SAMPLES), rank.optimizer, 8, seed=3)
        sizes = train(rank, sampler, 3, SPEEDS)
        assert rank.optimizer.shares == pytest.approx((0.5, 0.5, 1.0, 2.0))
        return sizes, weights(rank.model), rank.optimizer.samples_seen

    results = balanced(4, work, exchange=exchange)
    assert [sizes[0] for sizes, _, _ in results] == [8, 8, 8, 8]
    assert [sizes[-2] for sizes, _, _ in results] == [4, 4, 8, 16]
    for sizes, ended, seen in results:
        assert len(sizes) == len(results[0][0])
        assert seen == 3 * SAMPLES
        assert_same(ended, results[0][1])


def test_what_selecting_takes_is_no_part_of_a_speed():
    """Else who has a small share would seem slow for it, and would keep it."""

    def work(rank: ThreadRank) -> Any:
        clock = FakeClock()
        timed_by(clock, rank.optimizer, exchanging=1.0)
        backward = rank.optimizer.synchronizer.gradient_ready

        def ready(name: str) -> None:
            clock.now += 0.25  # four tensors
            backward(name)

        rank.optimizer.synchronizer.gradient_ready = ready
        sampler = gradsieve_hvd.DynamicSampler(range(SAMPLES), rank.optimizer, 6, seed=3)
        rank.optimizer.batches.change(1, (0.5, 1.5))
        train(rank, sampler, 1, (100.0, 100.0))
        return rank.optimizer.shares

    assert balanced(2, work)[0] == pytest.approx((1.0, 1.0))


def test_speeds_that_hardly_differ_change_nothing():
    def work(rank: ThreadRank) -> Any:
        timed_by(FakeClock(), rank.optimizer)
        sampler = gradsieve_hvd.DynamicSampler(range(SAMPLES), rank.optimizer, 6, seed=3)
        return train(rank, sampler, 1, (100.0, 115.0))

    for sizes in balanced(2, work):
        assert set(sizes) == {6}


def test_without_a_sampler_the_first_step_says_what_is_missing():
    def work(rank: ThreadRank) -> None:
        with pytest.raises(ConfigurationError, match=r"make a gradsieve_hvd\.DynamicSampler"):
            rank.model(torch.ones(2, 60)).sum().backward()

    balanced(2, work)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"announce_every": 0}, "announce_every=0"),
        ({"op": "sum"}, "op=Sum does not go"),
        ({"backward_passes_per_step": 2}, "backward_passes_per_step does not go"),
        ({"compression": laplace(clip_global_norm=1.0)}, "clip_global_norm does not go"),
    ],
)
def test_settings_that_contradict_weights_are_refused(settings, said):
    model = perceptron()
    with pytest.raises(ConfigurationError, match=said):
        gradsieve_hvd.DistributedOptimizer(
            sgd(model), model.named_parameters(), **{"mode": "balanced", **settings}
        )


def test_samples_are_counted_in_every_mode_and_a_skipped_step_is_not():
    def work(rank: ThreadRank) -> Any:
        assert rank.optimizer.samples_seen is None
        sampler = gradsieve_hvd.DynamicSampler(range(SAMPLES), rank.optimizer, 10, seed=3)
        inputs, targets = data()
        for number, batch in enumerate(sampler):
            rank.optimizer.zero_grad()
            F.cross_entropy(rank.model(inputs[batch]), targets[batch]).backward()
            rank.optimizer.synchronize()
            if number != 1:
                with rank.optimizer.skip_synchronize():
                    rank.optimizer.step()
        return rank.optimizer.samples_seen

    seen = on_thread_ranks(2, work, compression=lossless(), optimizer=sgd)
    assert seen == [SAMPLES - 20] * 2


@on_ranks
def test_batches_by_speed_end_alike_on_real_ranks(hvd: Any) -> None:
    model = perceptron()
    optimizer = gradsieve_hvd.DistributedOptimizer(
        sgd(model), model.named_parameters(), lossless(), mode="balanced", announce_every=2
    )
    timed_by(FakeClock(), optimizer)
    sampler = gradsieve_hvd.DynamicSampler(range(SAMPLES), optimizer, 8, seed=3)
    rank = ThreadRank(hvd.rank(), hvd.size(), model, optimizer, None)
    sizes = train(rank, sampler, 2, [100.0 * (1 + each) for each in range(hvd.size())])
    assert_equal_on_all_ranks(hvd, weights(model))
    totals = hvd.allreduce(torch.tensor([float(each) for each in sizes]), op=hvd.Sum)
    assert int(totals.sum()) == 2 * SAMPLES
    assert len(set(sizes)) > 1


def test_a_rank_that_has_joined_is_no_fast_one():
    """Else the others would have the smallest batches, and it, which uses none, nearly all samples."""

    def work(rank: ThreadRank) -> Any:
        timed_by(FakeClock(), rank.optimizer)
        sampler = gradsieve_hvd.DynamicSampler(range(SAMPLES), rank.optimizer, 4, seed=3)
        inputs, targets = data()
        sizes = []
        for batch in sampler:
            if rank.rank == 2 and len(sizes) == 4:
                break
            rank.optimizer.zero_grad()
            F.cross_entropy(rank.model(inputs[batch]), targets[batch]).backward()
            rank.optimizer.synchronizer.balance.clock.now += len(batch) / 100.0
            rank.optimizer.step()
            sizes.append(len(batch))
        rank.optimizer.join()
        return sizes, rank.optimizer.shares, weights(rank.model)

    results = balanced(3, work)
    for sizes, shares, ended in results:
        assert set(sizes) == {4}
        assert shares == (1.0, 1.0, 1.0)
        assert_same(ended, results[0][2])


def test_no_batch_is_larger_than_three_nominal_ones():
    def work(rank: ThreadRank) -> Any:
        timed_by(FakeClock(), rank.optimizer)
        sampler = gradsieve_hvd.DynamicSampler(range(SAMPLES), rank.optimizer, 4, seed=3)
        return train(rank, sampler, 2, (*[100.0] * 4, 4000.0)), rank.optimizer.shares

    results = balanced(5, work)
    assert max(results[4][0]) == 12
    assert results[0][1] == pytest.approx((0.5, 0.5, 0.5, 0.5, 3.0))
