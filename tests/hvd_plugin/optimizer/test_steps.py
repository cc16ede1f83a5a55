"""A step is a transaction, and synchronize() and step() may be called as with Horovod's optimizer."""

from __future__ import annotations

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_ranks import ThreadRank, on_thread_ranks
from torch import nn
from training import Branches, assert_same, laplace, loss_of, lossless, perceptron, residuals, sgd, weights

import gradsieve_hvd
from gradsieve.errors import ConfigurationError
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks

RANKS = 2


def backward(rank: ThreadRank, step: int = 0) -> None:
    loss_of(rank.model, step, rank.rank).backward()


def trained(rank: ThreadRank, steps: int = 3) -> list[torch.Tensor]:
    for step in range(steps):
        rank.optimizer.zero_grad()
        backward(rank, step)
        rank.optimizer.step()
    return weights(rank.model)


def test_synchronizing_before_the_step_changes_nothing_of_it():
    def apart(rank: ThreadRank) -> list[torch.Tensor]:
        for step in range(3):
            rank.optimizer.zero_grad()
            backward(rank, step)
            rank.optimizer.synchronize()
            with rank.optimizer.skip_synchronize():
                rank.optimizer.step()
        return weights(rank.model)

    assert_same(on_thread_ranks(RANKS, apart)[0], on_thread_ranks(RANKS, trained)[0])


def test_a_second_synchronize_changes_nothing():
    def twice(rank: ThreadRank) -> list[torch.Tensor]:
        for step in range(3):
            rank.optimizer.zero_grad()
            backward(rank, step)
            rank.optimizer.synchronize()
            before = rank.gradients()
            rank.optimizer.synchronize()
            assert_same(rank.gradients(), before)
            rank.optimizer.step()  # synchronizes a third time
        return weights(rank.model)

    assert_same(on_thread_ranks(RANKS, twice)[0], on_thread_ranks(RANKS, trained)[0])


def test_clipping_between_synchronize_and_step_is_applied():
    def clipped(rank: ThreadRank) -> list[torch.Tensor]:
        backward(rank)
        rank.optimizer.synchronize()
        nn.utils.clip_grad_norm_(rank.model.parameters(), 1e-3)
        rank.optimizer.step()
        return weights(rank.model)

    results = on_thread_ranks(RANKS, clipped)
    assert_same(results[0], results[1])
    moved = torch.cat(
        [(new - old).flatten() for new, old in zip(results[0], weights(perceptron()), strict=True)]
    )
    assert moved.norm() == pytest.approx(0.1 * 1e-3, rel=1e-3)


def test_a_skipped_step_gives_residuals_back():
    def with_a_skip(rank: ThreadRank) -> list[torch.Tensor]:
        trained(rank, 2)
        before = residuals(rank.optimizer)
        rank.optimizer.zero_grad()
        backward(rank, 77)
        rank.optimizer.synchronize()  # and then a loss scaler does not step
        rank.optimizer.zero_grad()
        backward(rank, 2)
        after_the_skip = residuals(rank.optimizer)
        for name in before:
            assert torch.equal(before[name], after_the_skip[name])
        rank.optimizer.step()
        return weights(rank.model)

    assert_same(on_thread_ranks(RANKS, with_a_skip)[0], on_thread_ranks(RANKS, trained)[0])


def test_gradients_set_by_hand_after_a_skipped_step_are_exchanged():
    def by_hand(rank: ThreadRank) -> list[torch.Tensor]:
        backward(rank)
        rank.optimizer.synchronize()
        for parameter in rank.model.parameters():
            parameter.grad = torch.full_like(parameter, float(rank.rank + 1))
        rank.optimizer.synchronize()
        return [parameter.grad for parameter in rank.model.parameters()]

    for gradients in on_thread_ranks(RANKS, by_hand, compression=lossless()):
        assert all(bool((gradient == 1.5).all()) for gradient in gradients)


def test_gradients_in_flight_cannot_be_zeroed():
    def zeroing(rank: ThreadRank) -> None:
        backward(rank)
        with pytest.raises(AssertionError, match="being exchanged"):
            rank.optimizer.zero_grad()
        rank.optimizer.step()
        rank.optimizer.zero_grad(set_to_none=False)
        assert all(bool((p.grad == 0).all()) for p in rank.model.parameters())
        rank.optimizer.zero_grad()
        assert all(p.grad is None for p in rank.model.parameters())

    on_thread_ranks(RANKS, zeroing)


def test_more_backward_passes_than_announced_are_refused():
    def twice(rank: ThreadRank) -> None:
        backward(rank)
        with pytest.raises(ConfigurationError, match="backward_passes_per_step=1.*earlier.*delete it"):
            backward(rank)
        rank.optimizer.synchronize()

    on_thread_ranks(RANKS, twice)


def test_a_change_in_flight_is_refused():
    def changed(rank: ThreadRank) -> None:
        backward(rank)
        nn.utils.clip_grad_norm_(rank.model.parameters(), 1e-3)
        with pytest.raises(ConfigurationError, match="between backward\\(\\) and synchronize\\(\\)"):
            rank.optimizer.step()

    on_thread_ranks(RANKS, changed)


def test_a_closure_is_refused():
    def closing(rank: ThreadRank) -> None:
        with pytest.raises(ConfigurationError, match=r"step\(closure\)"):
            rank.optimizer.step(lambda: 0.0)

    on_thread_ranks(1, closing)


@settings(max_examples=50, deadline=None)
@given(
    orders=st.lists(  # per step, per rank: which layers, in which order
        st.lists(st.lists(st.integers(0, 4), max_size=5, unique=True), min_size=3, max_size=3),
        min_size=4,
        max_size=4,
    )
)
def test_gradients_may_become_ready_in_any_order_and_be_missing_anywhere(orders):
    def train(rank: ThreadRank) -> list[torch.Tensor]:
        for step, order in enumerate(orders):
            rank.optimizer.zero_grad()
            inputs = torch.full((2, 20), 0.1 * (1 + rank.rank + step), requires_grad=True)
            rank.model(inputs, order[rank.rank]).square().sum().backward()
            rank.optimizer.step()
        return weights(rank.model)

    torch.manual_seed(0)
    results = on_thread_ranks(3, train, model=Branches(), compression=laplace(density=0.1))
    for result in results[1:]:
        assert_same(result, results[0])


def test_a_rank_without_any_gradient_takes_part():
    def lazy(rank: ThreadRank) -> list[torch.Tensor]:
        for step in range(2):
            rank.optimizer.zero_grad()
            if rank.rank == 0:
                backward(rank, step)
            rank.optimizer.step()
        return weights(rank.model)

    results = on_thread_ranks(RANKS, lazy, optimizer=sgd)
    assert_same(results[0], results[1])
    assert not torch.equal(results[0][0], weights(perceptron())[0])


def test_another_optimizer_may_follow_one_that_was_deleted():
    """At once: Python looks for the cycles that keep the old one's parts alive whenever it likes."""
    model = perceptron()

    def work(transport: ThreadTransport) -> None:
        optimizer = gradsieve_hvd.DistributedOptimizer(
            sgd(model), model.named_parameters(), laplace(), transport=transport
        )
        for number in range(2):
            optimizer.zero_grad()
            loss_of(model, number, 0).backward()
            optimizer.step()

    gc.disable()
    try:
        for _ in range(2):
            run_ranks(1, work)
    finally:
        gc.enable()
