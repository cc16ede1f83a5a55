"""Ranks that disagree get the same error, with both values, before anything is exchanged."""

from __future__ import annotations

from typing import Any

import pytest
from real_ranks import on_ranks
from torch import nn
from training import (
    assert_equal_on_all_ranks,
    distribute,
    laplace,
    loss_of,
    lossless,
    perceptron,
    train,
    weights,
)

from gradsieve_hvd import RankMismatch


def first_step(hvd: Any, model: nn.Module, optimizer: Any) -> None:
    loss_of(model, 0, hvd.rank()).backward()
    optimizer.step()


@on_ranks
def test_different_densities(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace(density=0.5 if hvd.rank() == 1 else 0.25))
    with pytest.raises(RankMismatch, match=r"compression\.density is 0\.25 on rank 0 and 0\.5 on rank 1"):
        first_step(hvd, model, optimizer)


@on_ranks
def test_different_methods(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, lossless() if hvd.rank() == hvd.size() - 1 else laplace())
    with pytest.raises(
        RankMismatch, match=r'compression\.algorithm is "laplace" on rank 0 and "topk" on rank'
    ):
        first_step(hvd, model, optimizer)


@on_ranks
def test_different_reductions(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace(), op=hvd.Sum if hvd.rank() == 1 else hvd.Average)
    with pytest.raises(RankMismatch, match='op is "Average" on rank 0 and "Sum" on rank 1'):
        first_step(hvd, model, optimizer)


@on_ranks
def test_different_models(hvd: Any) -> None:
    model = nn.Sequential(
        nn.Linear(60, 30 if hvd.rank() == 1 else 20), nn.Linear(30 if hvd.rank() == 1 else 20, 10)
    )
    optimizer = distribute(hvd, model, laplace())
    with pytest.raises(
        RankMismatch, match=r"parameters\.0\.weight is .*\(20, 60\).* on rank 0 and .*\(30, 60\)"
    ):
        first_step(hvd, model, optimizer)


@on_ranks
def test_optimizers_that_begin_in_another_order(hvd: Any) -> None:
    """As in a GAN whose ranks train generator and discriminator in turn, one of them the other way round."""
    models = {"generator": perceptron(), "discriminator": nn.Linear(60, 10)}
    optimizers = {name: distribute(hvd, model, laplace()) for name, model in models.items()}
    order = ["discriminator", "generator"] if hvd.rank() == 1 else ["generator", "discriminator"]
    with pytest.raises(
        RankMismatch,
        match=r"different order: rank 0 begins with the one of '0\.bias', .*, rank 1 with that of 'bias'",
    ):
        first_step(hvd, models[order[0]], optimizers[order[0]])


@on_ranks
def test_after_the_error_a_right_configuration_trains(hvd: Any) -> None:
    model = perceptron()
    train(hvd, model, distribute(hvd, model, laplace()))
    assert_equal_on_all_ranks(hvd, weights(model))
