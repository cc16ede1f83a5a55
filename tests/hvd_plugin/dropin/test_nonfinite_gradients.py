"""NaN and infinity: named on every rank, and nothing is lost; or passed on to a loss scaler that skips the
step."""

from __future__ import annotations

import contextlib
import re
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
    residuals,
    train,
    weights,
)

import gradsieve_hvd
from gradsieve_hvd import NonFiniteGradient


def poison(model: nn.Module, name: str, value: float) -> None:
    """Let the next backward pass give one parameter a non-finite gradient."""
    parameter = dict(model.named_parameters())[name]
    handle = parameter.register_hook(lambda gradient: torch.full_like(gradient, value))
    model.poisoned = handle  # type: ignore[assignment]


def heal(model: nn.Module) -> None:
    if hasattr(model, "poisoned"):
        model.poisoned.remove()


def refused_and_recovered(
    hvd: Any, parameter: str, value: float, explicit: bool, groups: int | None = None
) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace(), groups=groups)
    train(hvd, model, optimizer, steps=2)
    before, held = residuals(optimizer), weights(model)
    if hvd.rank() == 1:
        poison(model, parameter, value)
    optimizer.zero_grad()
    loss_of(model, 2, hvd.rank()).backward()
    if explicit:
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    synchronizing = optimizer.skip_synchronize() if explicit else contextlib.nullcontext()
    with synchronizing, pytest.raises(NonFiniteGradient, match=rf"'{re.escape(parameter)}' on rank 1\."):
        optimizer.step()
    heal(model)
    assert_same(weights(model), held)
    assert all(torch.equal(residuals(optimizer)[name], before[name]) for name in before)
    train(hvd, model, optimizer, steps=2, first=2)
    assert_equal_on_all_ranks(hvd, weights(model))

    twin = perceptron()
    assert_same(train(hvd, twin, distribute(hvd, twin, laplace(), groups=groups), steps=4), weights(model))


@on_ranks
def test_nan_in_a_compressed_gradient_is_named_on_every_rank_and_the_next_step_works(hvd: Any) -> None:
    refused_and_recovered(hvd, "0.weight", float("nan"), explicit=False)


@on_ranks
def test_infinity_in_a_dense_gradient_is_named_on_every_rank_and_the_next_step_works(hvd: Any) -> None:
    refused_and_recovered(hvd, "0.bias", float("inf"), explicit=False)


@on_ranks
def test_with_clipping_between_synchronize_and_step(hvd: Any) -> None:
    refused_and_recovered(hvd, "2.weight", float("-inf"), explicit=True)
    refused_and_recovered(hvd, "2.bias", float("nan"), explicit=True)


@on_ranks
def test_with_groups(hvd: Any) -> None:
    refused_and_recovered(hvd, "0.weight", float("nan"), explicit=False, groups=1)


@on_ranks
def test_several_parameters_on_several_ranks_are_all_named(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    poison(model, "0.weight" if hvd.rank() == 0 else "2.bias", float("nan"))
    loss_of(model, 0, hvd.rank()).backward()
    others = "rank 1" if hvd.size() == 2 else "ranks 1, 2, 3"
    with pytest.raises(NonFiniteGradient, match=rf"'0\.weight' on rank 0, '2\.bias' on {others}\."):
        optimizer.step()


@on_ranks
def test_the_error_comes_again_until_there_is_a_new_gradient(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    held = weights(model)
    poison(model, "0.weight", float("nan"))
    loss_of(model, 0, hvd.rank()).backward()
    for _ in range(2):
        with pytest.raises(NonFiniteGradient):
            optimizer.step()
    assert_same(weights(model), held)


class Embedded(nn.Module):
    """A sparse embedding, whose gradient Horovod reduces by itself, and perhaps a layer behind it."""

    def __init__(self, layer: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 10, sparse=True)
        self.head = nn.Linear(10, 20) if layer else nn.Identity()

    def forward(self, step: int, rank: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 * step + rank)
        words = torch.randint(40, (6,), generator=generator)
        return self.head(self.words(words)).square().sum()


def distribute_embedded(hvd: Any, model: nn.Module) -> Any:
    return hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01),
        named_parameters=model.named_parameters(),
        compression=laplace(),
    )


@on_ranks
def test_nan_in_a_sparse_embedding_gradient_is_named_on_every_rank(hvd: Any) -> None:
    for layer in (True, False):
        torch.manual_seed(0)
        model = Embedded(layer)
        optimizer = distribute_embedded(hvd, model)
        twin = Embedded(layer)
        twin.load_state_dict(model.state_dict())
        twin_optimizer = distribute_embedded(hvd, twin)
        for step in range(4):
            if step == 2:
                optimizer.zero_grad()
                held = weights(model)
                factor = float("nan") if hvd.rank() == 1 else 1.0
                words = model.words.weight.register_hook(lambda gradient, factor=factor: gradient * factor)
                model(100, hvd.rank()).backward()
                words.remove()
                with pytest.raises(NonFiniteGradient, match=r"'words\.weight' on rank 1\."):
                    optimizer.step()
                assert_same(weights(model), held)
            for some, its_optimizer in ((model, optimizer), (twin, twin_optimizer)):
                its_optimizer.zero_grad()
                some(step, hvd.rank()).backward()
                its_optimizer.step()
        assert_same(weights(model), weights(twin))
        assert_equal_on_all_ranks(hvd, weights(model))


def scaled_step(model: nn.Module, optimizer: Any, scaler: torch.amp.GradScaler, step: int, rank: int) -> None:
    optimizer.zero_grad()
    scaler.scale(loss_of(model, step, rank)).backward()
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    scaler.update()


@on_ranks
def test_with_a_loss_scaler_all_ranks_skip_the_step_together(hvd: Any) -> None:
    model = perceptron()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    optimizer = distribute(hvd, model, laplace(grad_scaler=scaler))
    for step in range(2):
        scaled_step(model, optimizer, scaler, step, hvd.rank())
    before, held = residuals(optimizer), weights(model)
    if hvd.rank() == 1:
        poison(model, "0.weight", float("inf"))
    scaled_step(model, optimizer, scaler, 2, hvd.rank())
    heal(model)
    assert scaler.get_scale() == 512.0
    assert_same(weights(model), held)
    scaled_step(model, optimizer, scaler, 2, hvd.rank())
    assert_equal_on_all_ranks(hvd, weights(model))

    twin = perceptron()
    twin_optimizer = distribute(hvd, twin, laplace())
    train(hvd, twin, twin_optimizer, steps=2)
    assert_same(list(before.values()), list(residuals(twin_optimizer).values()))


@on_ranks
def test_loss_scales_that_grow_and_back_off_leave_no_trace_in_the_training(hvd: Any) -> None:
    """Scales are powers of two, so that scaling is exact and the comparison can be too."""
    model = perceptron()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    optimizer = distribute(hvd, model, laplace(grad_scaler=scaler))
    scales = set()
    for step in range(6):
        scales.add(scaler.get_scale())
        scaled_step(model, optimizer, scaler, step, hvd.rank())
        if step == 3:
            scaler.update(new_scale=4.0)
    assert len(scales) >= 3

    twin = perceptron()
    twin_optimizer = distribute(hvd, twin, laplace())
    assert_same(weights(model), train(hvd, twin, twin_optimizer, steps=6))
    assert_same(list(residuals(optimizer).values()), list(residuals(twin_optimizer).values()))


@on_ranks
def test_with_a_loss_scaler_and_several_backward_passes(hvd: Any) -> None:
    model = perceptron()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**6, growth_interval=1000)
    optimizer = distribute(hvd, model, laplace(grad_scaler=scaler), backward_passes_per_step=2)
    for step in range(3):
        optimizer.zero_grad()
        for part in range(2):
            scaler.scale(loss_of(model, 2 * step + part, hvd.rank())).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()

    twin = perceptron()
    twin_optimizer = distribute(hvd, twin, laplace(), backward_passes_per_step=2)
    for step in range(3):
        twin_optimizer.zero_grad()
        for part in range(2):
            loss_of(twin, 2 * step + part, hvd.rank()).backward()
        twin_optimizer.step()
    assert_same(weights(model), weights(twin))


def test_a_scaler_and_raising_contradict_each_other() -> None:
    with pytest.raises(gradsieve_hvd.ConfigurationError, match="nonfinite='raise' contradicts grad_scaler"):
        gradsieve_hvd.Compression.topk(grad_scaler=torch.amp.GradScaler("cpu"), nonfinite="raise")


def test_an_unknown_way_of_treating_them_is_refused() -> None:
    with pytest.raises(gradsieve_hvd.ConfigurationError, match="nonfinite='ignore'"):
        gradsieve_hvd.Compression.topk(nonfinite="ignore")
