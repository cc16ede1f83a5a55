"""A step is a transaction: residuals change when the optimizer has stepped, and only then."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from real_ranks import on_ranks
from thread_ranks import plain_sgd
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
from gradsieve.errors import ConfigurationError


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def same_bits(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@on_ranks
def test_nothing_that_was_given_is_lost(hvd: Any) -> None:
    """Sent by all ranks + residuals of all ranks == given to all ranks, for every compressed tensor."""
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    given = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    arrived = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for step in range(6):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        reference = perceptron()
        reference.load_state_dict(model.state_dict())
        loss_of(reference, step, hvd.rank()).backward()
        for name, parameter in reference.named_parameters():
            assert parameter.grad is not None
            given[name] += parameter.grad
        optimizer.step()
        for name, gradient in gradients(model).items():
            arrived[name] += gradient * hvd.size()
    for name, residual in residuals(optimizer).items():
        given_by_all = hvd.allreduce(given[name], op=hvd.Sum)
        owed_by_all = hvd.allreduce(residual, op=hvd.Sum).view(given_by_all.shape)
        # fp32 rounding of 6 steps and of the sums over ranks
        torch.testing.assert_close(arrived[name] + owed_by_all, given_by_all, rtol=1e-5, atol=1e-6)


@on_ranks
def test_a_second_synchronize_sends_nothing_and_changes_nothing(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    train(hvd, model, optimizer, steps=3)
    before = residuals(optimizer)
    optimizer.zero_grad()
    loss_of(model, 3, hvd.rank()).backward()
    optimizer.synchronize()
    averaged = gradients(model)
    optimizer.synchronize()
    assert same_bits(gradients(model), averaged)
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    clipped = gradients(model)
    assert not same_bits(clipped, averaged)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Horovod's own, that this use is slow
        optimizer.step()
    assert same_bits(gradients(model), clipped)
    assert not same_bits(residuals(optimizer), before), (
        "the step was taken, so the residuals must have moved on"
    )
    sent = gradsieve_hvd.statistics(optimizer)
    train(hvd, model, optimizer, steps=1, first=4)
    once = gradsieve_hvd.statistics(optimizer)
    assert sent.elements == once.elements, "the second synchronize() sent payloads"
    assert_equal_on_all_ranks(hvd, weights(model))


@on_ranks
def test_clipping_with_a_second_synchronize_trains_like_clipping_without(hvd: Any) -> None:
    results = []
    for skip in (True, False):
        model = perceptron()
        optimizer = distribute(hvd, model, laplace())
        for step in range(5):
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if skip:
                    with optimizer.skip_synchronize():
                        optimizer.step()
                else:
                    optimizer.step()
        results.append((weights(model), residuals(optimizer)))
    assert all(torch.equal(a, b) for a, b in zip(results[0][0], results[1][0], strict=True))
    assert same_bits(results[0][1], results[1][1])


@on_ranks
def test_a_skipped_step_gives_all_tensors_their_residual_back(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    train(hvd, model, optimizer, steps=3)
    before, held = residuals(optimizer), weights(model)
    optimizer.zero_grad()
    loss_of(model, 100, hvd.rank()).backward()
    optimizer.synchronize()  # and no step
    assert same_bits(residuals(optimizer), before)
    train(hvd, model, optimizer, steps=2, first=3)

    twin = perceptron()
    twin_optimizer = distribute(hvd, twin, laplace())
    train(hvd, twin, twin_optimizer, steps=5)
    assert not torch.equal(held[0], weights(model)[0])
    assert same_bits(residuals(optimizer), residuals(twin_optimizer)), "the skipped step left a trace"


@on_ranks
def test_residuals_are_those_of_the_last_step_until_the_next_one_is_taken(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    train(hvd, model, optimizer, steps=2)
    before = residuals(optimizer)
    optimizer.zero_grad()
    loss_of(model, 2, hvd.rank()).backward()
    assert same_bits(residuals(optimizer), before)
    optimizer.synchronize()
    assert same_bits(residuals(optimizer), before)
    with optimizer.skip_synchronize():
        optimizer.step()
    assert not same_bits(residuals(optimizer), before)


@on_ranks
def test_gradients_set_by_hand_are_exchanged_at_every_step(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace(density=1.0))
    for step in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, float(step + hvd.rank()))
        optimizer.synchronize()
        for parameter in model.parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(
                parameter.grad, torch.full_like(parameter, step + (hvd.size() - 1) / 2)
            )
        if step != 1:  # a step skipped by the user's own decision
            with optimizer.skip_synchronize():
                optimizer.step()


@on_ranks
def test_what_has_not_been_synchronized_is_not_applied(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    loss_of(model, 0, hvd.rank()).backward()
    before = weights(model)
    with optimizer.skip_synchronize(), pytest.raises(ConfigurationError, match="apply this rank's own"):
        optimizer.step()
    assert_same(weights(model), before)
    optimizer.step()
    assert_equal_on_all_ranks(hvd, weights(model))


@on_ranks
def test_a_model_may_change_its_type_while_it_trains(hvd: Any) -> None:
    for convert in (nn.Module.double, nn.Module.bfloat16):
        model = perceptron()
        optimizer = hvd.DistributedOptimizer(
            plain_sgd(model), named_parameters=model.named_parameters(), compression=laplace()
        )
        train(hvd, model, optimizer, steps=1)
        convert(model)
        train(hvd, model, optimizer, steps=2, first=1)
        assert_equal_on_all_ranks(hvd, weights(model))
