"""What went wrong in the drop-in without a word goes right, or is an error, in our own optimizer as well.

Frozen layers, clipping, weights that drift apart and changes in flight have files of their own.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from thread_ranks import ThreadRank, on_thread_ranks
from torch import nn
from training import assert_same, laplace, loss_of, lossless, perceptron, residuals, sgd, weights

import gradsieve
import gradsieve_hvd
from gradsieve.errors import ConfigurationError, NonFiniteGradient

RANKS = 2
EXCHANGES = ("allgather", "ring", "scatter", "lowrank", "dense")
exchanges = pytest.mark.parametrize("exchange", EXCHANGES)


def trained(rank: ThreadRank, steps: int, first: int = 0) -> list[torch.Tensor]:
    for step in range(first, first + steps):
        rank.optimizer.zero_grad()
        loss_of(rank.model, step, rank.rank).backward()
        rank.optimizer.step()
    return weights(rank.model)


def set_by_hand(rank: ThreadRank, value: float) -> None:
    for parameter in rank.model.parameters():
        parameter.grad = torch.full_like(parameter, value)


@exchanges
def test_a_gradient_that_is_replaced_after_synchronize_is_applied_as_one_that_is_changed(exchange):
    def halving(rank: ThreadRank, replaces: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        for step in range(3):
            rank.optimizer.zero_grad()
            loss_of(rank.model, step, rank.rank).backward()
            rank.optimizer.synchronize()
            for parameter in rank.model.parameters():
                if replaces:
                    parameter.grad = parameter.grad * 0.5
                else:
                    parameter.grad.mul_(0.5)
            rank.optimizer.step()
        return weights(rank.model), [*residuals(rank.optimizer).values()]

    replaced = on_thread_ranks(RANKS, lambda rank: halving(rank, True), exchange=exchange, optimizer=sgd)
    changed = on_thread_ranks(RANKS, lambda rank: halving(rank, False), exchange=exchange, optimizer=sgd)
    for (own, left), (expected, expected_left) in zip(replaced, changed, strict=True):
        assert_same(own, expected)
        assert_same(left, expected_left)


@exchanges
def test_gradients_set_by_hand_train_on_after_a_nan(exchange):
    def train(rank: ThreadRank) -> list[torch.Tensor]:
        set_by_hand(rank, 1.0)
        rank.optimizer.step()
        before = weights(rank.model)
        set_by_hand(rank, float("nan") if rank.rank == 1 else 1.0)
        with pytest.raises(NonFiniteGradient, match="on rank 1"):
            rank.optimizer.step()
        assert_same(weights(rank.model), before)
        set_by_hand(rank, 1.0)
        rank.optimizer.step()
        assert not torch.equal(weights(rank.model)[0], before[0])
        return weights(rank.model)

    results = on_thread_ranks(RANKS, train, exchange=exchange)
    assert_same(results[0], results[1])


class Words(nn.Module):
    """An embedding with sparse gradients below a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(50, 8, sparse=True), nn.Linear(8, 4)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.layer(self.embedding(words))


def test_nan_in_a_sparse_gradient_is_named_and_nothing_is_changed():
    def train(rank: ThreadRank) -> None:
        before = weights(rank.model)
        loss = rank.model(torch.arange(rank.rank, 10)).square().sum()
        (loss * (float("nan") if rank.rank == 1 else 1.0)).backward()
        with pytest.raises(NonFiniteGradient, match=r"'embedding\.weight' on rank 1"):
            rank.optimizer.step()
        assert_same(weights(rank.model), before)

    on_thread_ranks(RANKS, train, model=Words(), sparse_as_dense=True)


@exchanges
def test_a_sum_beyond_single_precision_is_refused(exchange):
    def train(rank: ThreadRank) -> None:
        before = weights(rank.model)
        set_by_hand(rank, 2.5e38)
        with pytest.raises(NonFiniteGradient):
            rank.optimizer.step()
        assert_same(weights(rank.model), before)

    on_thread_ranks(RANKS, train, exchange=exchange, op="sum", compression=lossless())


def test_mass_that_a_half_precision_parameter_cannot_hold_is_refused():
    def train(rank: ThreadRank) -> None:
        for _ in range(100):
            before = weights(rank.model)
            set_by_hand(rank, 900.0)
            try:
                rank.optimizer.step()
            except NonFiniteGradient:
                assert_same(weights(rank.model), before)
                return
        pytest.fail("more than 65 504 was applied")

    def slow(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1e-6)

    # So few are selected that some wait for more than 73 steps.
    few = laplace(density=0.001)
    on_thread_ranks(RANKS, train, model=perceptron().half(), optimizer=slow, compression=few)


@pytest.mark.parametrize(
    ("model", "settings", "complaint"),
    [
        pytest.param(nn.Linear(20, 20, dtype=torch.complex64), {}, "complex64", id="complex numbers"),
        pytest.param(
            perceptron(),
            {"compression": laplace(momentum=gradsieve.MomentumCorrection())},
            "would apply momentum twice",
            id="momentum twice",
        ),
        pytest.param(
            perceptron(),
            {"compression": gradsieve.Compression.laplace()},
            r"gradsieve_hvd\.Compression",
            id="settings without an exchange",
        ),
        pytest.param(perceptron(), {"mode": ["asp"]}, r"mode=\['asp'\]: known are", id="modes"),
        pytest.param(perceptron(), {"mode": None}, "mode=None: known are", id="no mode"),
    ],
)
def test_what_cannot_be_meant_is_refused(model: nn.Module, settings: dict[str, Any], complaint: str):
    with pytest.raises(ConfigurationError, match=complaint):
        on_thread_ranks(1, lambda rank: None, model=model, optimizer=sgd, **settings)


def test_a_checkpoint_fits_a_compiled_model_and_no_damaged_one_is_loaded():
    def resume(rank: ThreadRank) -> None:
        trained(rank, 3)
        saved, held = gradsieve_hvd.state_dict(rank.optimizer), residuals(rank.optimizer)
        trained(rank, 1, first=3)
        compiled = {"_orig_mod." + name: layer for name, layer in saved["layers"].items()}
        gradsieve_hvd.load_state_dict(rank.optimizer, copy.deepcopy(saved | {"layers": compiled}))
        assert_same([*residuals(rank.optimizer).values()], [*held.values()])
        damaged = copy.deepcopy(saved)
        next(iter(damaged["layers"].values()))["threshold"] = "high"
        with pytest.raises(ConfigurationError, match="threshold"):
            gradsieve_hvd.load_state_dict(rank.optimizer, damaged)
        assert_same([*residuals(rank.optimizer).values()], [*held.values()])

    on_thread_ranks(RANKS, resume)


def test_a_model_of_which_nothing_is_compressed_is_warned_of():
    with pytest.warns(UserWarning, match="nothing is compressed"):
        on_thread_ranks(RANKS, lambda rank: trained(rank, 1), compression=laplace(min_elements=10**6))


def test_clipping_that_keeps_taking_much_after_the_exchange_is_warned_about_once_by_rank_0():
    def train(rank: ThreadRank) -> None:
        for number in range(40):
            rank.optimizer.zero_grad()
            loss_of(rank.model, number, rank.rank).backward()
            rank.optimizer.synchronize()
            nn.utils.clip_grad_norm_(rank.model.parameters(), 0.05)
            with rank.optimizer.skip_synchronize():
                rank.optimizer.step()

    with pytest.warns(UserWarning, match=r"has taken [2-9]\d% of the gradient of '") as warned:
        on_thread_ranks(RANKS, train, optimizer=sgd)
    assert len(warned) == 1
