"""``clip_global_norm``: gradients of all ranks are clipped as one, before residuals take what is not sent."""

from __future__ import annotations

import copy
import math
import re
import warnings
from typing import Any

import pytest
import torch
from real_ranks import on_ranks
from torch import Tensor, nn
from training import (
    assert_equal_on_all_ranks,
    assert_same,
    distribute,
    laplace,
    loss_of,
    lossless,
    perceptron,
    residuals,
    train,
    weights,
)

import gradsieve_hvd
from gradsieve_hvd import ConfigurationError
from gradsieve_hvd.optimizers import reducer_of

BOUND = 0.05


def applied(
    hvd: Any, compression: Any, *, factor: float = 1.0, steps: int = 3, **options: Any
) -> list[Tensor]:
    """The gradients that a step applies, all tensors in one, while neither weights nor batch change."""
    model = perceptron()
    optimizer = distribute(hvd, model, compression, **options)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        (loss_of(model, 0, hvd.rank()) * factor).backward()
        optimizer.step()
        found.append(torch.cat([p.grad.flatten().clone() for p in model.parameters() if p.grad is not None]))
    return found


@on_ranks
def test_the_reduced_gradient_of_all_tensors_is_clipped_from_the_second_step_on(hvd: Any) -> None:
    for options in ({}, {"op": hvd.Sum}, {"groups": 1}, {"gradient_predivide_factor": 2.0}):
        whole = applied(hvd, lossless(), **options)[0]
        assert float(whole.norm()) > 4 * BOUND
        first, second, third = applied(hvd, lossless(clip_global_norm=BOUND), **options)
        assert float(first.norm()) <= BOUND * (1 + 1e-5)
        # The norm is known from 127 sums, with a standard deviation of 6 %.
        assert float(second.norm()) == pytest.approx(BOUND, rel=0.25)
        assert float(torch.cosine_similarity(second, whole, dim=0)) == pytest.approx(1.0, abs=1e-5)
        assert torch.equal(second, third)


@on_ranks
def test_gradients_below_the_bound_are_left_as_they_are(hvd: Any) -> None:
    expected = applied(hvd, laplace())
    assert_same(applied(hvd, laplace(clip_global_norm=1e3)), expected)


@on_ranks
def test_what_an_exploding_rank_accumulates_is_bounded_in_that_very_step(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace(clip_global_norm=BOUND))
    train(hvd, model, optimizer, steps=3)
    optimizer.zero_grad()
    (loss_of(model, 3, hvd.rank()) * (1e6 if hvd.rank() == 1 else 1.0)).backward()
    optimizer.step()
    for residual in residuals(optimizer).values():
        assert float(residual.norm()) < 2 * BOUND * hvd.size() * 2
    assert all(bool(torch.isfinite(weight).all()) for weight in weights(model))
    train(hvd, model, optimizer, steps=2, first=4)
    assert_equal_on_all_ranks(hvd, weights(model))


@on_ranks
def test_a_skipped_step_leaves_no_trace(hvd: Any) -> None:
    trained = []
    for skips in (False, True):
        model = perceptron()
        optimizer = distribute(hvd, model, laplace(clip_global_norm=BOUND))
        train(hvd, model, optimizer, steps=3)
        if skips:
            optimizer.zero_grad()
            (loss_of(model, 100, hvd.rank()) * 50).backward()
            optimizer.synchronize()  # and no step
        trained.append(train(hvd, model, optimizer, steps=3, first=3))
    assert_same(trained[1], trained[0])


@on_ranks
def test_a_resumed_training_goes_on_bit_for_bit(hvd: Any) -> None:
    compression = laplace(clip_global_norm=BOUND)
    whole = perceptron()
    expected = train(hvd, whole, distribute(hvd, whole, compression), steps=6)
    first = perceptron()
    optimizer = distribute(hvd, first, compression)
    train(hvd, first, optimizer, steps=3)
    saved = copy.deepcopy((first.state_dict(), optimizer.state_dict(), gradsieve_hvd.state_dict(optimizer)))
    resumed = perceptron(seed=1)
    resumed.load_state_dict(saved[0])
    optimizer = distribute(hvd, resumed, compression)
    optimizer.load_state_dict(saved[1])
    gradsieve_hvd.load_state_dict(optimizer, saved[2])
    reducer_of(optimizer).restart()  # as TrainingState does
    assert_same(train(hvd, resumed, optimizer, steps=3, first=3), expected)


@on_ranks
def test_a_loss_scale_makes_no_difference(hvd: Any) -> None:
    trained = []
    for scale in (1.0, 2.0**10):
        model = perceptron()
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000)
        optimizer = distribute(hvd, model, laplace(clip_global_norm=BOUND, grad_scaler=scaler))
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, step, hvd.rank())).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
        trained.append(weights(model))
    assert_same(trained[1], trained[0])


@on_ranks
def test_a_nan_is_refused_as_without_clipping_and_changes_no_norm(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace(clip_global_norm=BOUND))
    train(hvd, model, optimizer, steps=3)
    before = gradsieve_hvd.state_dict(optimizer)["clipping"]
    optimizer.zero_grad()
    (loss_of(model, 3, hvd.rank()) * (math.nan if hvd.rank() == 1 else 1.0)).backward()
    with pytest.raises(gradsieve_hvd.NonFiniteGradient, match="on rank 1"):
        optimizer.step()
    optimizer.zero_grad()
    loss_of(model, 4, hvd.rank()).backward()
    assert gradsieve_hvd.state_dict(optimizer)["clipping"] == before
    optimizer.step()
    assert gradsieve_hvd.state_dict(optimizer)["clipping"] != before


def clip_between(hvd: Any, clip: Any, steps: int = 14, scaler: Any = None) -> list[str]:
    """Train with something between synchronize() and step(); return the warnings of this rank."""
    model = perceptron()
    optimizer = distribute(hvd, model, laplace(grad_scaler=scaler))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(steps):
            optimizer.zero_grad()
            loss = loss_of(model, step, hvd.rank())
            (loss if scaler is None else scaler.scale(loss)).backward()
            optimizer.synchronize()
            if scaler is not None:
                scaler.unscale_(optimizer)
            clip(model)
            with optimizer.skip_synchronize():
                optimizer.step() if scaler is None else scaler.step(optimizer)
            if scaler is not None:
                scaler.update()
    return [str(each.message) for each in caught if "between synchronize() and step()" in str(each.message)]


def clip_hard(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def halve(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)


@on_ranks
def test_clipping_that_keeps_taking_much_is_warned_about_once_by_the_first_rank(hvd: Any) -> None:
    found = clip_between(hvd, clip_hard, steps=40)
    assert len(found) == (hvd.rank() == 0)
    assert all(re.search(r"has taken [2-9]\d% of the gradient of '", each) for each in found)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
    assert len(clip_between(hvd, clip_hard, scaler=scaler)) == (hvd.rank() == 0)


@on_ranks
def test_one_factor_for_all_steps_is_no_clipping(hvd: Any) -> None:
    """A sum that is divided by the number of ranks, say."""
    assert clip_between(hvd, halve, steps=40) == []


@on_ranks
def test_gradients_that_keep_most_of_their_mass_are_not_warned_about(hvd: Any) -> None:
    def weight_decay(model: nn.Module) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.add_(parameter.detach(), alpha=0.1)

    assert clip_between(hvd, lambda _: None) == []
    assert clip_between(hvd, lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1e3)) == []
    assert clip_between(hvd, weight_decay) == []
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
    assert clip_between(hvd, lambda _: None, scaler=scaler) == []


@on_ranks
def test_gradients_that_nobody_touches_are_not_measured(hvd: Any) -> None:
    """torch counts changes in place; what Horovod itself does to a gradient is known, or every step would be
    measured."""
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    train(hvd, model, optimizer, steps=3)
    assert reducer_of(optimizer).clipping_watch._observing == 0
    optimizer.zero_grad()
    loss_of(model, 3, hvd.rank()).backward()
    optimizer.synchronize()
    halve(model)
    with optimizer.skip_synchronize():
        optimizer.step()
    assert reducer_of(optimizer).clipping_watch._observing == 10


@pytest.mark.parametrize("bound", [0, -1.0, math.nan, math.inf, "1", True])
def test_bounds_that_are_none(bound):
    with pytest.raises(ConfigurationError, match="clip_global_norm"):
        laplace(clip_global_norm=bound)
