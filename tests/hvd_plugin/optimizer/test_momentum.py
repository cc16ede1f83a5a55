"""Momentum of a plain SGD is applied before compression, and looks as if it were the optimizer's."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from real_ranks import on_ranks
from thread_ranks import ThreadRank, on_thread_ranks
from torch import nn
from training import (
    assert_equal_on_all_ranks,
    assert_same,
    laplace,
    loss_of,
    lossless,
    perceptron,
    residuals,
    sgd,
    weights,
)

import gradsieve_hvd
from gradsieve.errors import ConfigurationError

STEPS = 6


def groups(model: nn.Module) -> torch.optim.SGD:
    """Weights that decay, biases that do not and have another momentum."""
    decaying = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    return torch.optim.SGD(
        [{"params": decaying, "weight_decay": 0.02}, {"params": others, "momentum": 0.5}],
        lr=0.1,
        momentum=0.9,
    )


def schedule(optimizer: torch.optim.Optimizer, step: int) -> None:
    """As OneCycleLR: the momentum changes from step to step."""
    optimizer.param_groups[0]["momentum"] = 0.9 - 0.05 * step


def train(rank: ThreadRank, steps: int = STEPS, first: int = 0) -> list[torch.Tensor]:
    for step in range(first, first + steps):
        schedule(rank.optimizer, step)
        rank.optimizer.zero_grad()
        loss_of(rank.model, step, rank.rank).backward()
        rank.optimizer.step()
    return weights(rank.model)


def trained_alone(ranks: int, *, averages: bool, steps: int = STEPS) -> tuple[nn.Module, torch.optim.SGD]:
    """A model trained by plain SGD on the ranks' losses, in one process."""
    model = perceptron()
    optimizer = groups(model)
    for step in range(steps):
        schedule(optimizer, step)
        optimizer.zero_grad()
        losses = torch.stack([loss_of(model, step, rank) for rank in range(ranks)])
        (losses.mean() if averages else losses.sum()).backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("op", ["average", "sum"])
@pytest.mark.parametrize("exchange", ["allgather", "ring", "scatter"])
def test_sending_everything_is_sgd_with_momentum_and_decay(exchange, op):
    results = on_thread_ranks(3, train, compression=lossless(), optimizer=groups, exchange=exchange, op=op)
    expected = weights(trained_alone(3, averages=op == "average")[0])
    for result in results:
        assert_same(result, results[0])
    assert_same(results[0], expected, rtol=1e-4, atol=1e-5)  # six steps' sums in another order


def test_what_is_accumulated_are_velocities():
    """Of an entry that waits, momentum goes on: after two equal gradients g it is g + (g + m g)."""

    def wait(rank: ThreadRank) -> torch.Tensor:
        for _ in range(2):
            rank.optimizer.zero_grad()
            (rank.model.weight * torch.tensor([[100.0] * 5 + [1.0] * 95])).sum().backward()
            rank.optimizer.step()
        return residuals(rank.optimizer)["weight"]

    torch.manual_seed(0)
    [left] = on_thread_ranks(
        1,
        wait,
        model=nn.Linear(100, 1, bias=False),
        compression=gradsieve_hvd.Compression.topk(0.05, min_elements=10),
        optimizer=sgd,
    )
    torch.testing.assert_close(left, torch.tensor([0.0] * 5 + [2.9] * 95))


def test_groups_and_state_show_the_users_values():
    def look(rank: ThreadRank) -> None:
        train(rank, 2)
        for shown in (rank.optimizer.param_groups, rank.optimizer.state_dict()["param_groups"]):
            assert [group["momentum"] for group in shown] == [0.85, 0.5]
            assert [group["weight_decay"] for group in shown] == [0.02, 0]

    on_thread_ranks(2, look, optimizer=groups)


def test_a_training_begun_by_plain_sgd_goes_on_with_its_momentum():
    model, plain = trained_alone(2, averages=True, steps=3)

    def with_state(own: nn.Module) -> torch.optim.SGD:
        optimizer = groups(own)
        optimizer.load_state_dict(copy.deepcopy(plain.state_dict()))
        return optimizer

    def go_on(rank: ThreadRank) -> list[torch.Tensor]:
        return train(rank, STEPS - 3, first=3)

    results = on_thread_ranks(2, go_on, model=model, compression=lossless(), optimizer=with_state)
    expected = weights(trained_alone(2, averages=True)[0])
    assert_same(results[0], expected, rtol=1e-4, atol=1e-6)


def test_a_skipped_step_gives_velocities_back():
    def with_a_skip(rank: ThreadRank) -> list[torch.Tensor]:
        train(rank, 3)
        rank.optimizer.zero_grad()
        loss_of(rank.model, 77, rank.rank).backward()
        rank.optimizer.synchronize()
        return train(rank, 3, first=3)

    results = on_thread_ranks(2, with_a_skip, optimizer=groups)
    assert_same(results[0], on_thread_ranks(2, train, optimizer=groups)[0])


class CarefulSgd(torch.optim.SGD):
    """Of which nobody knows what it does."""


def _made(kind: Callable[..., torch.optim.Optimizer], **options: Any) -> Any:
    return lambda model: kind(model.parameters(), lr=0.1, **options)


@pytest.mark.parametrize(
    ("optimizer", "settings", "reason"),
    [
        pytest.param(_made(torch.optim.SGD, momentum=0.9, nesterov=True), {}, "nesterov=True", id="nesterov"),
        pytest.param(
            _made(torch.optim.SGD, momentum=0.9, dampening=0.1), {}, "dampening=0.1", id="dampening"
        ),
        pytest.param(_made(torch.optim.SGD, momentum=0.9, maximize=True), {}, "maximize=True", id="maximize"),
        pytest.param(_made(CarefulSgd, momentum=0.9), {}, "CarefulSgd", id="a class of the user's"),
        pytest.param(sgd, {"compression": laplace(clip_norm=1.0)}, "clip_norm", id="clipped tensors"),
        pytest.param(sgd, {"momentum_correction": False}, "", id="switched off"),
        pytest.param(sgd, {"exchange": "lowrank"}, "", id="nothing is selected"),
    ],
)
def test_other_momentum_is_left_to_the_optimizer_and_rank_0_says_why(optimizer, settings, reason, caplog):
    def look(rank: ThreadRank) -> int:
        train(rank, 2)
        return sum("momentum_buffer" in state for state in rank.optimizer.state.values())

    with caplog.at_level(logging.WARNING, "gradsieve.optimizer"):
        assert on_thread_ranks(2, look, optimizer=optimizer, **settings) == [4, 4]
    said = [record.getMessage() for record in caplog.records if record.name == "gradsieve.optimizer"]
    assert len(said) == bool(reason)
    assert all(f"because of {reason}" in line for line in said)


def test_momentum_that_comes_and_goes_is_sgds():
    def warmed_up(optimizer: torch.optim.Optimizer, number: int) -> None:
        optimizer.param_groups[0]["momentum"] = 0.0 if number < 2 or number == 4 else 0.9

    def distributed(rank: ThreadRank) -> list[torch.Tensor]:
        for number in range(STEPS):
            warmed_up(rank.optimizer, number)
            rank.optimizer.zero_grad()
            loss_of(rank.model, number, rank.rank).backward()
            rank.optimizer.step()
        return weights(rank.model)

    model = perceptron()
    alone = groups(model)
    for number in range(STEPS):
        warmed_up(alone, number)
        alone.zero_grad()
        ((loss_of(model, number, 0) + loss_of(model, number, 1)) / 2).backward()
        alone.step()
    for trained in on_thread_ranks(2, distributed, optimizer=groups, compression=lossless()):
        assert_same(trained, weights(model), rtol=1e-5, atol=1e-6)


def test_an_optimizer_without_momentum_is_not_talked_about(caplog):
    with caplog.at_level(logging.DEBUG, "gradsieve.optimizer"):
        on_thread_ranks(2, train, optimizer=_made(torch.optim.AdamW))
    assert not [record for record in caplog.records if record.name == "gradsieve.optimizer"]


def test_momentum_that_can_no_longer_be_applied_before_is_an_error_and_changes_nothing():
    def turn(rank: ThreadRank) -> None:
        train(rank, 1)
        before = weights(rank.model)
        rank.optimizer.param_groups[1]["nesterov"] = True
        with pytest.raises(ConfigurationError, match=r"nesterov=True now.*momentum_correction=False"):
            train(rank, 1)
        assert_same(weights(rank.model), before)
        assert rank.optimizer.param_groups[0]["momentum"] == 0.9
        rank.optimizer.param_groups[1]["nesterov"] = False
        train(rank, 1)

    on_thread_ranks(2, turn, optimizer=groups)


@on_ranks
def test_broadcasting_the_state_before_and_in_between_loses_no_momentum(hvd: Any) -> None:
    def trained(**settings: Any) -> list[torch.Tensor]:
        model = perceptron(seed=hvd.rank())
        optimizer = gradsieve_hvd.DistributedOptimizer(
            groups(model), model.named_parameters(), lossless(), **settings
        )
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        for step in range(6):
            if step == 3:
                hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            optimizer.step()
        assert_equal_on_all_ranks(hvd, weights(model))
        return weights(model)

    assert_same(trained(), trained(momentum_correction=False), rtol=1e-4, atol=1e-5)
