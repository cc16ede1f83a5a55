"""A layer that is frozen while training goes on holds still, and loses nothing."""

from __future__ import annotations

from typing import Any

import torch
from real_ranks import on_ranks
from torch import nn
from training import (
    assert_equal_on_all_ranks,
    assert_same,
    distribute,
    laplace,
    loss_of,
    perceptron,
    residuals,
    train,
    weights,
)

import gradsieve_hvd
from gradsieve import MomentumCorrection


def freeze(model: nn.Module, frozen: bool = True) -> None:
    for name, parameter in model.named_parameters():
        if name.startswith("0."):
            parameter.requires_grad_(not frozen)


def frozen_weights(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for name, p in model.named_parameters() if name.startswith("0.")]


@on_ranks
def test_neither_weights_nor_residuals_move(hvd: Any) -> None:
    """Although the optimizer has momentum and weight decay."""
    for groups in (None, 1):
        model = perceptron()
        stock = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        optimizer = hvd.DistributedOptimizer(
            stock, named_parameters=model.named_parameters(), compression=laplace(), groups=groups
        )
        train(hvd, model, optimizer, steps=3)
        freeze(model)
        held, waiting = frozen_weights(model), residuals(optimizer)["0.weight"]
        moving = model[2].weight.detach().clone()
        assert bool(waiting.any())
        train(hvd, model, optimizer, steps=4, first=3)
        assert_same(frozen_weights(model), held)
        assert torch.equal(residuals(optimizer)["0.weight"], waiting)
        assert not torch.equal(model[2].weight, moving)
        assert_equal_on_all_ranks(hvd, weights(model))


@on_ranks
def test_with_a_gradient_left_from_the_last_step(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace(momentum=MomentumCorrection(allow_double_momentum=True)))
    train(hvd, model, optimizer, steps=3)
    freeze(model)
    held = frozen_weights(model)
    for step in range(3, 6):  # no zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.step()
    assert_same(frozen_weights(model), held)


@on_ranks
def test_what_waits_is_told_and_sent_after_thawing(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    train(hvd, model, optimizer, steps=3)
    assert gradsieve_hvd.statistics(optimizer).waiting == {}
    freeze(model)
    train(hvd, model, optimizer, steps=2, first=3)
    waiting = gradsieve_hvd.statistics(optimizer).waiting
    norm = float(residuals(optimizer)["0.weight"].norm())
    assert waiting == {"0.weight": norm}
    freeze(model, frozen=False)
    held = frozen_weights(model)
    train(hvd, model, optimizer, steps=1, first=5)
    assert gradsieve_hvd.statistics(optimizer).waiting == {}
    assert not torch.equal(frozen_weights(model)[0], held[0])
    assert_equal_on_all_ranks(hvd, weights(model))


@on_ranks
def test_frozen_on_some_ranks_only_it_still_follows_the_others(hvd: Any) -> None:
    """An error of the user's, which must neither hang nor part the ranks' weights."""
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    train(hvd, model, optimizer, steps=2)
    if hvd.rank() == 0:
        freeze(model)
    held = frozen_weights(model)
    train(hvd, model, optimizer, steps=3, first=2)
    assert not torch.equal(frozen_weights(model)[0], held[0])
    assert_equal_on_all_ranks(hvd, weights(model))


@on_ranks
def test_a_skipped_step_leaves_it_as_it_was(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    train(hvd, model, optimizer, steps=2)
    freeze(model)
    held, waiting = frozen_weights(model), residuals(optimizer)["0.weight"]
    loss_of(model, 2, hvd.rank()).backward()
    optimizer.synchronize()  # and no step
    train(hvd, model, optimizer, steps=2, first=3)
    assert_same(frozen_weights(model), held)
    assert torch.equal(residuals(optimizer)["0.weight"], waiting)
