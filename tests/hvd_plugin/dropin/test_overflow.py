"""A sum of finite gradients that is too large for its tensor never reaches a weight."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from real_ranks import on_ranks
from torch import nn
from training import assert_same, distribute, laplace, perceptron, residuals, weights

from gradsieve_hvd import NonFiniteGradient


def give(model: nn.Module, value: float) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)


def refusal(optimizer: Any) -> str:
    """Take a step; return why it was refused, if it was."""
    try:
        optimizer.step()
    except NonFiniteGradient as error:
        return str(error)
    return ""


def steps_until_refused(optimizer: Any, model: nn.Module, value: float, most: int) -> int:
    for step in range(most):
        give(model, value)
        before, held = residuals(optimizer) if step else {}, weights(model)
        message = refusal(optimizer)
        if message:
            assert "too large" in message
            assert "'0.weight'" in message
            assert_same(weights(model), held)
            after = residuals(optimizer)
            assert all(torch.equal(after[name], before[name]) for name in before)
            return step
        assert all(bool(torch.isfinite(weight).all()) for weight in weights(model))
    raise AssertionError(f"nothing was refused in {most} steps")


@on_ranks
def test_mass_that_a_half_precision_parameter_cannot_hold_is_refused_by_name(hvd: Any) -> None:
    """Entries that wait grow: at 1 % each is sent after some 100 steps, with 100 gradients in it."""
    model = perceptron().half()
    optimizer = distribute(hvd, model, laplace(density=0.01))
    assert steps_until_refused(optimizer, model, 900.0, most=110) > 60


@on_ranks
def test_a_sum_beyond_single_precision_is_refused_by_name(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace(), op=hvd.Sum)
    for parameter in list(model.parameters())[1::2]:
        parameter.requires_grad_(False)  # the biases, whose sums Horovod's own all-reduce overflows
    held = weights(model)
    for _ in range(2):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.full_like(parameter, 2.5e38 if name == "0.weight" else 1.0)
        with pytest.raises(NonFiniteGradient, match=r"'0\.weight' \(torch\.float32\).* too large"):
            optimizer.step()
        assert_same(weights(model), held)


@on_ranks
def test_it_is_raised_again_until_there_is_a_new_gradient(hvd: Any) -> None:
    """On the dense path as on the compressed one."""
    for name in ("0.weight", "0.bias"):
        model = perceptron()
        optimizer = distribute(hvd, model, laplace(), op=hvd.Sum)
        held = weights(model)
        for other, parameter in model.named_parameters():
            parameter.grad = torch.full_like(parameter, 2.5e38 if other == name else 1.0)
        for _ in range(3):
            assert name in refusal(optimizer)
            assert_same(weights(model), held)
        give(model, 1.0)
        optimizer.step()
        assert all(bool(torch.isfinite(weight).all()) for weight in weights(model))


@on_ranks
def test_a_dense_sum_is_looked_at_in_the_parameters_own_type(hvd: Any) -> None:
    """bf16 travels as fp32, which holds a sum that bf16 rounds to infinity."""
    model = perceptron().bfloat16()
    optimizer = distribute(hvd, model, laplace(min_elements=10_000), op=hvd.Sum)
    shares = {0: torch.finfo(torch.bfloat16).max, 1: 1.5 * 2.0**119}
    give(model, shares.get(hvd.rank(), 0.0))
    with pytest.raises(NonFiniteGradient, match="too large"):
        optimizer.step()


@on_ranks
def test_with_propagate_every_rank_gets_infinity(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace(density=1.0, nonfinite="propagate"), op=hvd.Sum)
    give(model, 2.5e38)
    optimizer.synchronize()
    assert all(bool(torch.isinf(p.grad).all()) for p in model.parameters() if p.grad is not None)
