"""Ranks whose data run out early take part with nothing until all have ended."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from real_ranks import on_ranks
from thread_ranks import ThreadRank, on_thread_ranks
from torch import nn
from training import (
    assert_equal_on_all_ranks,
    assert_same,
    laplace,
    loss_of,
    lossless,
    perceptron,
    residuals,
    sgd,
    weights,
)

import gradsieve_hvd
from gradsieve.errors import ConfigurationError, ExchangeError, NonFiniteGradient

EXCHANGES = ("allgather", "ring", "scatter", "lowrank", "dense")
exchanges = pytest.mark.parametrize("exchange", EXCHANGES)


def epoch(rank: ThreadRank, steps: int, first: int = 0) -> int:
    """Train so many steps on this rank; return the last rank."""
    for step in range(first, first + steps):
        rank.optimizer.zero_grad()
        loss_of(rank.model, step, rank.rank).backward()
        rank.optimizer.step()
    return rank.optimizer.join()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


@exchanges
@pytest.mark.parametrize("optimizer", [sgd, adam])
def test_all_ranks_go_on_with_the_state_of_the_one_that_ended_last(exchange, optimizer):
    lengths = [[2, 5, 3], [4, 0, 4], [3, 3, 3]]  # per epoch, by rank

    def train(rank: ThreadRank) -> tuple[list[int], list[torch.Tensor]]:
        last = [epoch(rank, each[rank.rank], 10 * number) for number, each in enumerate(lengths)]
        for step in range(2):
            rank.optimizer.zero_grad()
            loss_of(rank.model, 100 + step, rank.rank).backward()
            rank.optimizer.step()
        return last, weights(rank.model)

    results = on_thread_ranks(
        3, train, exchange=exchange, optimizer=optimizer, compression=laplace(check_weights_every=1)
    )
    for last, end in results:
        assert last == [1, 2, 2]
        assert_same(end, results[0][1])


@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_it_trains_as_if_the_others_had_gone_on_with_gradients_of_zero(lengths):
    def joining(rank: ThreadRank) -> list[torch.Tensor]:
        epoch(rank, lengths[rank.rank])
        return weights(rank.model)

    model = perceptron()
    alone = sgd(model)
    for step in range(max(lengths)):
        alone.zero_grad()
        losses = [loss_of(model, step, rank) for rank, length in enumerate(lengths) if step < length]
        (torch.stack(losses).sum() / len(lengths)).backward()
        alone.step()
    for result in on_thread_ranks(
        len(lengths), joining, optimizer=sgd, compression=lossless(), momentum_correction=False
    ):
        assert_same(result, weights(model), rtol=1e-4, atol=1e-6)  # sums in another order


@pytest.mark.parametrize("exchange", ["allgather", "ring"])
def test_the_residual_of_a_rank_that_has_joined_waits(exchange):
    def train(rank: ThreadRank) -> None:
        for step in range(2):
            rank.optimizer.zero_grad()
            loss_of(rank.model, step, rank.rank).backward()
            rank.optimizer.step()
        if rank.rank == 0:
            before = residuals(rank.optimizer)
            epoch(rank, 0)
            assert_same([*residuals(rank.optimizer).values()], [*before.values()])
            assert any(bool(residual.any()) for residual in before.values())
        else:
            epoch(rank, 3, first=2)

    on_thread_ranks(2, train, exchange=exchange)


@exchanges
def test_a_step_that_is_skipped_meanwhile_is_skipped_by_all(exchange):
    def train(rank: ThreadRank, skips: bool) -> list[torch.Tensor]:
        if rank.rank > 0:
            for step in range(4):
                if skips and step == 2:
                    rank.optimizer.zero_grad()
                    loss_of(rank.model, 77, rank.rank).backward()
                    rank.optimizer.synchronize()
                rank.optimizer.zero_grad()
                loss_of(rank.model, step, rank.rank).backward()
                rank.optimizer.synchronize()
                nn.utils.clip_grad_norm_(rank.model.parameters(), 1.0)
                rank.optimizer.step()  # synchronizes a second time, which changes nothing
        rank.optimizer.join()
        assert rank.optimizer.synchronizer.reducer.step == 4
        return weights(rank.model)

    skipped = on_thread_ranks(3, lambda rank: train(rank, True), exchange=exchange)
    assert_same(skipped[0], skipped[2])
    if exchange != "scatter":  # whose blocks remember where the skipped step's entries were
        assert_same(skipped[0], on_thread_ranks(3, lambda rank: train(rank, False), exchange=exchange)[0])


def test_a_loss_scaler_skips_for_ranks_that_have_joined_too():
    def train(rank: ThreadRank) -> list[torch.Tensor]:
        scaler: torch.amp.GradScaler = rank.optimizer.synchronizer.reducer.settings.grad_scaler
        for step in range(4 if rank.rank else 1):
            rank.optimizer.zero_grad()
            loss = loss_of(rank.model, step, rank.rank) * (float("inf") if step == 2 else 1.0)
            scaler.scale(loss).backward()
            rank.optimizer.synchronize()
            scaler.unscale_(rank.optimizer)
            with rank.optimizer.skip_synchronize():
                scaler.step(rank.optimizer)
            scaler.update()
        rank.optimizer.join()
        assert rank.optimizer.synchronizer.reducer.step == 3
        return weights(rank.model)

    results = on_thread_ranks(
        2, train, compression=lambda: laplace(grad_scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    )
    assert_same(results[0], results[1])


def test_nan_meanwhile_is_an_error_on_all_ranks_and_they_may_go_on():
    def train(rank: ThreadRank) -> list[torch.Tensor]:
        if rank.rank == 0:
            with pytest.raises(NonFiniteGradient, match=r"on rank 1\."):
                rank.optimizer.join()
        for step in range(3 if rank.rank else 0):
            rank.optimizer.zero_grad()
            (loss_of(rank.model, step, rank.rank) * (float("nan") if step == 1 else 1.0)).backward()
            if step == 1:
                with pytest.raises(NonFiniteGradient, match=r"on rank 1\."):
                    rank.optimizer.step()
            else:
                rank.optimizer.step()
        assert rank.optimizer.join() == 1
        return weights(rank.model)

    results = on_thread_ranks(2, train)
    assert_same(results[0], results[1])


def test_a_rank_that_never_comes_is_an_exchange_error_of_those_that_have_joined():
    def train(rank: ThreadRank) -> None:
        loss_of(rank.model, 0, rank.rank).backward()
        rank.optimizer.step()
        if rank.rank == 2:
            return
        if rank.rank == 1:
            rank.optimizer.zero_grad()
            loss_of(rank.model, 1, rank.rank).backward()
        with pytest.raises(ExchangeError):
            rank.optimizer.step() if rank.rank else rank.optimizer.join()

    on_thread_ranks(3, train, timeout=1.0, compression=laplace(timeout_seconds=2.0))


def test_joining_while_gradients_travel_is_refused():
    def join(rank: ThreadRank) -> None:
        loss_of(rank.model, 0, rank.rank).backward()
        with pytest.raises(ConfigurationError, match="between backward\\(\\) and step\\(\\)"):
            rank.optimizer.join()
        rank.optimizer.step()
        assert rank.optimizer.join() == 1

    on_thread_ranks(2, join)


@pytest.mark.parametrize("mode", ["synchronous", "balanced"])
def test_the_round_in_which_all_have_joined_uses_nobodys_batch(mode):
    def train(rank: ThreadRank) -> Any:
        sampler = gradsieve_hvd.DynamicSampler(range(40), rank.optimizer, 4)
        used, seen = [], []

        def use(batches: Any) -> None:
            for places in batches:
                rank.optimizer.zero_grad()
                loss_of(rank.model, len(used), rank.rank).backward()
                rank.optimizer.step()
                used.extend(places)

        for epoch in range(2):
            sampler.set_epoch(epoch)
            if epoch == 1:
                use(itertools.islice(sampler, 2))  # joined amid the epoch
                rank.optimizer.join()
            use(sampler)
            rank.optimizer.join()
            seen.append((sampler.state_dict()["used"], rank.optimizer.samples_seen))
        return used, seen

    ranks = on_thread_ranks(2, train, mode=mode, compression=lossless(), optimizer=sgd)
    assert [seen for _, seen in ranks] == [[(40, 40), (40, 80)]] * 2
    assert sorted(place for used, _ in ranks for place in used) == sorted([*range(40)] * 2)


@on_ranks
def test_real_ranks_may_have_unlike_amounts_of_data(hvd: Any) -> None:
    for exchange in EXCHANGES:
        model = perceptron()
        optimizer = gradsieve_hvd.DistributedOptimizer(
            sgd(model), model.named_parameters(), laplace(), exchange=exchange
        )
        for step in range(1 + 2 * hvd.rank()):
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            optimizer.step()
        assert optimizer.join() == hvd.size() - 1
        assert_equal_on_all_ranks(hvd, weights(model))
