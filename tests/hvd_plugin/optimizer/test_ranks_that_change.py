"""Ranks come and go: what is owed stays the same, and the rest begins again."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from real_ranks import on_ranks
from thread_ranks import ThreadRank, on_thread_ranks
from torch import nn
from training import (
    assert_equal_on_all_ranks,
    laplace,
    loss_of,
    perceptron,
    residuals,
    sgd,
    weights,
)

import gradsieve_hvd
from gradsieve_hvd.engine import checkpoint


def trained(rank: ThreadRank) -> dict[str, Any]:
    for step in range(2):
        rank.optimizer.zero_grad()
        loss_of(rank.model, step, rank.rank).backward()
        rank.optimizer.step()
    return gradsieve_hvd.state_dict(rank.optimizer)


@pytest.mark.parametrize("exchange", ["allgather", "lowrank"])
@pytest.mark.parametrize(("before", "after"), [(4, 3), (4, 1), (2, 5)])
@pytest.mark.parametrize("op", ["average", "sum"])
def test_survivors_owe_the_weights_as_much_as_before(exchange, before, after, op):
    saved = on_thread_ranks(before, trained, exchange=exchange, op=op)

    def taken_over(rank: ThreadRank) -> dict[str, torch.Tensor]:
        if rank.rank < before:
            checkpoint.prepare(rank.optimizer.synchronizer.reducer, saved[rank.rank], residuals=True)()
        return residuals(rank.optimizer)

    divisor_before, divisor_after = (before, after) if op == "average" else (1, 1)
    for old, new in zip(saved, on_thread_ranks(after, taken_over, exchange=exchange, op=op), strict=False):
        assert new.keys() == old["layers"].keys()
        for name, residual in new.items():
            owed = old["layers"][name]["feedback"]["residual"]
            assert bool(owed.any())
            torch.testing.assert_close(residual / divisor_after, owed / divisor_before)


def elastic_optimizer(model: nn.Module) -> Any:
    os.environ["HOROVOD_ELASTIC"] = "1"  # as Horovod's elastic driver has set it before a process begins
    try:
        return gradsieve_hvd.DistributedOptimizer(sgd(model), model.named_parameters(), laplace())
    finally:
        del os.environ["HOROVOD_ELASTIC"]


@on_ranks
def test_an_optimizer_that_starts_again_in_elastic_training_keeps_its_residual(hvd: Any) -> None:
    model = perceptron()
    optimizer = elastic_optimizer(model)
    for step in range(6):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        if step == 3:
            optimizer.restart()  # in the midst of a step, which is not taken
            owed = residuals(optimizer)
            assert any(bool(each.any()) for each in owed.values())
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
        optimizer.step()
    assert optimizer.synchronizer.reducer.step == 6
    assert_equal_on_all_ranks(hvd, weights(model))


@on_ranks
def test_weights_stay_equal_when_a_new_rank_without_momentum_joins(hvd: Any) -> None:
    model = perceptron()
    optimizer = elastic_optimizer(model)
    for step in range(6):
        if step == 3:
            before = velocities(optimizer)
            optimizer.restart()
            kept = velocities(optimizer)
            assert kept.keys() == {"0.weight", "2.weight"}, "the compressed ones"
            assert all(torch.equal(each, before[name]) and each.any() for name, each in kept.items())
        if step == 3 and hvd.rank() == hvd.size() - 1:
            weights_so_far, model = model.state_dict(), perceptron(seed=1)
            model.load_state_dict(weights_so_far)  # which a joining rank gets from the others
            optimizer = elastic_optimizer(model)
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.step()
    assert_equal_on_all_ranks(hvd, weights(model))


def velocities(optimizer: Any) -> dict[str, torch.Tensor]:
    return {name: each["velocity"] for name, each in gradsieve_hvd.state_dict(optimizer)["dense"].items()}
