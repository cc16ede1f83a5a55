"""A gradient that is changed while it is exchanged is refused: the change would be lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
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
    train,
    weights,
)

from gradsieve_hvd import ConfigurationError


def scaled_in_place(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)


def scaled_by_foreach(model: nn.Module) -> None:
    torch._foreach_mul_([parameter.grad for parameter in model.parameters()], 0.5)


def clipped(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def replaced(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad = parameter.grad * 0.5


def removed(model: nn.Module) -> None:
    model.zero_grad()


CHANGES: tuple[Callable[[nn.Module], None], ...] = (
    scaled_in_place,
    scaled_by_foreach,
    clipped,
    replaced,
    removed,
)


@on_ranks
def test_before_a_step(hvd: Any) -> None:
    for change in CHANGES:
        model = perceptron()
        optimizer = distribute(hvd, model, laplace())
        train(hvd, model, optimizer, steps=2)
        held = weights(model)
        loss_of(model, 2, hvd.rank()).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        change(model)
        with pytest.raises(ConfigurationError, match=r"'0\.weight'.* while it was exchanged"):
            optimizer.step()
        assert_same(weights(model), held)
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.synchronize()  # so that the next optimizer finds nothing in flight


@on_ranks
def test_before_a_synchronize_of_the_users(hvd: Any) -> None:
    for change in CHANGES[:-1]:  # Horovod's synchronize() itself fails where there is no gradient
        model = perceptron()
        optimizer = distribute(hvd, model, laplace())
        train(hvd, model, optimizer, steps=2)
        held = weights(model)
        loss_of(model, 2, hvd.rank()).backward()
        change(model)
        optimizer.synchronize()
        with optimizer.skip_synchronize(), pytest.raises(ConfigurationError, match="while it was exchanged"):
            optimizer.step()
        assert_same(weights(model), held)
        train(hvd, model, optimizer, steps=2, first=3)
        assert_equal_on_all_ranks(hvd, weights(model))


@on_ranks
def test_unscaling_before_synchronize(hvd: Any) -> None:
    model = perceptron()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = distribute(hvd, model, laplace(grad_scaler=scaler))
    held = weights(model)
    scaler.scale(loss_of(model, 0, hvd.rank())).backward()
    scaler.unscale_(optimizer)
    optimizer.synchronize()
    with optimizer.skip_synchronize(), pytest.raises(ConfigurationError, match="unscale"):
        scaler.step(optimizer)
    assert_same(weights(model), held)


@on_ranks
def test_hooks_that_run_before_the_exchange_may_change_gradients(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())

    def halve(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)

    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 0.5)
        parameter.register_post_accumulate_grad_hook(halve)
    train(hvd, model, optimizer, steps=3)
    assert_equal_on_all_ranks(hvd, weights(model))


class Joined(nn.Module):
    """Parameters that are used joined together: torch gives them gradients that share memory and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.randn(10, 60).mul(0.1) for _ in range(3))
        self.biases = nn.ParameterList(torch.zeros(10) for _ in range(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(inputs, torch.cat(list(self.parts)), torch.cat(list(self.biases)))


@on_ranks
def test_gradients_that_share_memory_with_each_other_may(hvd: Any) -> None:
    for passes in (1, 2):
        torch.manual_seed(0)
        model = Joined()
        optimizer = distribute(hvd, model, laplace(), backward_passes_per_step=passes)
        for step in range(3):
            optimizer.zero_grad()
            for part in range(passes):
                loss_of(model, passes * step + part, hvd.rank()).backward()
            assert model.parts[0].grad is not None
            optimizer.step()
        assert_equal_on_all_ranks(hvd, weights(model))


@on_ranks
def test_gradients_in_one_flat_buffer_may(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    flat = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    parts = flat.split([parameter.numel() for parameter in model.parameters()])
    for parameter, part in zip(model.parameters(), parts, strict=True):
        parameter.grad = part.view_as(parameter)
    for step in range(3):
        flat.zero_()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.step()
    twin = perceptron()
    assert_same(weights(model), train(hvd, twin, distribute(hvd, twin, laplace()), steps=3))


@on_ranks
def test_gradients_whose_elements_share_memory(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace(density=1.0))
    for parameter in model.parameters():
        parameter.grad = torch.tensor([float(hvd.rank())]).expand_as(parameter)
    optimizer.step()
    for parameter in model.parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, torch.full_like(parameter, (hvd.size() - 1) / 2))
