"""What is applied is what was exchanged, times what the user did to it, however he did it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
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
    sgd,
    weights,
)

import gradsieve_hvd

HALF = 0.5  # a power of two: scaling is exact, and so can comparisons be


def replace(model: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad = change(parameter.grad)


def plain_step(optimizer: Any) -> None:
    """A step without ``skip_synchronize()``, of which Horovod warns that it is slow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer.step()


def trained(hvd: Any, between: Callable[[nn.Module, Any], None], steps: int = 4) -> tuple[Any, Any]:
    """Weights and residuals after steps with ``between`` after synchronize()."""
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.synchronize()
        between(model, optimizer)
    return weights(model), list(residuals(optimizer).values())


def halved_in_place(model: nn.Module, optimizer: Any) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(HALF)
    with optimizer.skip_synchronize():
        optimizer.step()


@on_ranks
def test_a_new_tensor_after_synchronize_and_a_plain_step(hvd: Any) -> None:
    def between(model: nn.Module, optimizer: Any) -> None:
        replace(model, lambda gradient: gradient * HALF)
        plain_step(optimizer)

    for new, in_place in zip(trained(hvd, between), trained(hvd, halved_in_place), strict=True):
        assert_same(new, in_place)


@on_ranks
def test_a_new_tensor_between_two_calls_of_synchronize(hvd: Any) -> None:
    def between(model: nn.Module, optimizer: Any) -> None:
        replace(model, lambda gradient: gradient * HALF)
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()

    for new, in_place in zip(trained(hvd, between), trained(hvd, halved_in_place), strict=True):
        assert_same(new, in_place)


@on_ranks
def test_a_new_tensor_for_one_parameter_only(hvd: Any) -> None:
    def between(model: nn.Module, optimizer: Any, new: bool) -> None:
        parameter = dict(model.named_parameters())["0.weight"]
        assert parameter.grad is not None
        if new:
            parameter.grad = parameter.grad * HALF
        else:
            parameter.grad.mul_(HALF)
        plain_step(optimizer)

    first = trained(hvd, lambda model, optimizer: between(model, optimizer, True))
    second = trained(hvd, lambda model, optimizer: between(model, optimizer, False))
    for new, in_place in zip(first, second, strict=True):
        assert_same(new, in_place)


@on_ranks
def test_last_bits_may_differ_between_ranks(hvd: Any) -> None:
    """Machines of different kinds come to slightly different norms, so to slightly different gradients."""
    factor = HALF * (1 + 1e-6 * hvd.rank())
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    loss_of(model, 0, hvd.rank()).backward()
    optimizer.synchronize()
    replace(model, lambda gradient: gradient * factor)
    scaled = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    plain_step(optimizer)
    assert_same([p.grad for p in model.parameters() if p.grad is not None], scaled)


@on_ranks
def test_gradients_set_to_none_after_synchronize_are_dropped(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    loss_of(model, 0, hvd.rank()).backward()
    optimizer.synchronize()
    held = weights(model)
    for parameter in model.parameters():
        parameter.grad = None
    plain_step(optimizer)
    assert_same(weights(model), held)


@on_ranks
def test_a_rank_without_a_backward_pass_keeps_pace_after_a_skipped_step(hvd: Any) -> None:
    """It has nothing to ask the others, which do not expect to be asked."""
    for set_to_none in (True, False):
        model = perceptron()
        optimizer = distribute(hvd, model, laplace())
        loss_of(model, 0, hvd.rank()).backward()
        optimizer.synchronize()  # and no step
        for step in range(1, 4):
            model.zero_grad(set_to_none=set_to_none)
            if hvd.rank() or step != 1:
                loss_of(model, step, hvd.rank()).backward()
            optimizer.step()
        assert_equal_on_all_ranks(hvd, weights(model))


@on_ranks
def test_gradients_set_by_hand_after_a_skipped_step_are_new(hvd: Any) -> None:
    """Also where only one of them is a new tensor, and where step() does the exchanging."""
    model = perceptron()
    optimizer = distribute(hvd, model, laplace(density=1.0))
    for step in range(4):
        for name, parameter in model.named_parameters():
            value = float(step + hvd.rank())
            if step == 0 or name == "2.weight":
                parameter.grad = torch.full_like(parameter, value)
            else:
                assert parameter.grad is not None
                parameter.grad.fill_(value)
        if step % 2:
            plain_step(optimizer)
        else:
            optimizer.synchronize()  # and no step
        for parameter in model.parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(
                parameter.grad, torch.full_like(parameter, step + (hvd.size() - 1) / 2)
            )


@on_ranks
def test_gradients_set_by_hand_train_on_after_a_nan(hvd: Any) -> None:
    for in_place in (False, True):
        model = perceptron()
        optimizer = distribute(hvd, model, laplace())
        twin = perceptron()
        twin_optimizer = distribute(hvd, twin, laplace())
        for step in range(4):
            for name, parameter in model.named_parameters():
                value = 1.0 + step  # equal on all ranks: it must not be taken for what was exchanged
                if step == 1 and name == "0.weight" and hvd.rank() == 1:
                    value = float("nan")
                if in_place and parameter.grad is not None:
                    parameter.grad.fill_(value)
                else:
                    parameter.grad = torch.full_like(parameter, value)
            if step == 1:
                try:
                    optimizer.step()
                except gradsieve_hvd.NonFiniteGradient:
                    continue
                raise AssertionError("the NaN went unnoticed")
            optimizer.step()
            for parameter in twin.parameters():
                parameter.grad = torch.full_like(parameter, 1.0 + step)
            twin_optimizer.step()
        assert_same(weights(model), weights(twin))
        assert_same(list(residuals(optimizer).values()), list(residuals(twin_optimizer).values()))


@on_ranks
def test_the_sum_is_not_summed_again(hvd: Any) -> None:
    results = []
    for plain in (False, True):
        model = perceptron()
        optimizer = hvd.DistributedOptimizer(
            sgd(model), named_parameters=model.named_parameters(), compression=laplace(), op=hvd.Sum
        )
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            optimizer.synchronize()
            replace(model, lambda gradient: gradient * HALF)
            if plain:
                plain_step(optimizer)
            else:
                with optimizer.skip_synchronize():
                    optimizer.step()
        results.append(weights(model))
    assert_same(results[0], results[1])
    assert_equal_on_all_ranks(hvd, results[0])
