"""Nothing is lost on the way: what was applied and what waits is what was given, on all ranks together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_ranks import ThreadRank, on_thread_ranks
from training import Weights

import gradsieve_hvd

EXCHANGES = ("allgather", "ring", "scatter")


def train(
    rank: ThreadRank, gradients_of: Callable[[int], list[torch.Tensor]], steps: int
) -> tuple[list[torch.Tensor], list[torch.Tensor], dict[str, torch.Tensor]]:
    """Take steps at a learning rate of 1; return what was given in all, what was applied and what waits."""
    given_in_all = [torch.zeros_like(tensor) for tensor in rank.model.tensors]
    for step in range(steps):
        rank.optimizer.zero_grad()
        gradients = gradients_of(step)
        for total, gradient in zip(given_in_all, gradients, strict=True):
            total.add_(gradient)
        rank.model.backward(gradients)
        rank.optimizer.step()
    return given_in_all, [-tensor.detach() for tensor in rank.model.tensors], sums(rank.optimizer)


def integers(model: Weights, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(-64, 65, tensor.shape, generator=generator).float() for tensor in model.tensors]


def sums(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    layers = gradsieve_hvd.state_dict(optimizer)["layers"]
    return {name: layer["feedback"]["residual"] for name, layer in layers.items()}


@pytest.mark.parametrize("exchange", EXCHANGES)
@settings(max_examples=8, deadline=None)
@given(ranks=st.integers(1, 4), seed=st.integers(0, 1000), density=st.sampled_from([0.01, 0.1, 0.5, 1.0]))
def test_integer_gradients_are_conserved_bit_for_bit(exchange, ranks, seed, density):
    def work(rank: ThreadRank):
        return train(rank, lambda step: integers(rank.model, 10_000 * seed + 100 * step + rank.rank), 4)

    results = on_thread_ranks(
        ranks,
        work,
        model=Weights(),
        compression=gradsieve_hvd.Compression.topk(density, min_elements=100),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1.0),
        op="sum",
        exchange=exchange,
    )
    applied = results[0][1]
    for tensor in range(4):
        assert all(torch.equal(applied[tensor], other[1][tensor]) for other in results)
        given_in_all = torch.stack([result[0][tensor] for result in results]).sum(0)
        waiting = [result[2].get(f"tensors.{tensor}") for result in results]
        left = sum(each.view(given_in_all.shape) for each in waiting if each is not None)
        assert torch.equal(applied[tensor] + left, given_in_all)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("value_dtype", ["bfloat16", "int4"])
def test_what_rounding_takes_away_waits(exchange, value_dtype):
    results = on_thread_ranks(
        3,
        lambda rank: train(rank, lambda _: [torch.randn(each.shape) for each in rank.model.tensors], 1),
        model=Weights(),
        compression=gradsieve_hvd.Compression.topk(0.1, min_elements=100, value_dtype=value_dtype),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1.0),
        op="sum",
        exchange=exchange,
    )
    for tensor in (0, 1, 3):
        left = sum(result[2][f"tensors.{tensor}"].view(results[0][0][tensor].shape) for result in results)
        given_in_all = torch.stack([result[0][tensor] for result in results]).sum(0)
        # fp32 sums of nine numbers of magnitude 5, added up in another order
        torch.testing.assert_close(results[0][1][tensor] + left, given_in_all, rtol=0, atol=1e-5)


@settings(max_examples=8, deadline=None)
@given(
    ranks=st.integers(1, 3),
    seed=st.integers(0, 1000),
    low_rank=st.integers(1, 8),
    values=st.sampled_from(["float32", "float16", "bfloat16", "int4"]),
)
def test_what_two_factors_cannot_say_waits(ranks, seed, low_rank, values):
    def work(rank: ThreadRank):
        return train(rank, lambda step: integers(rank.model, 10_000 * seed + 100 * step + rank.rank), 4)

    results = on_thread_ranks(
        ranks,
        work,
        model=Weights(),
        compression=gradsieve_hvd.Compression.topk(min_elements=100, value_dtype=values),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1.0),
        op="sum",
        exchange="lowrank",
        rank=low_rank,
    )
    assert {name for name, waits in results[0][2].items() if bool(waits.any())} == {"tensors.0", "tensors.3"}
    for tensor in range(4):
        applied = results[0][1][tensor]
        assert all(torch.equal(applied, other[1][tensor]) for other in results)
        given_in_all = torch.stack([result[0][tensor] for result in results]).sum(0)
        waiting = [result[2].get(f"tensors.{tensor}") for result in results]
        left = sum(each.view(given_in_all.shape) for each in waiting if each is not None)
        # fp32 sums of some tens of numbers of magnitude up to 1 000
        torch.testing.assert_close(applied + left, given_in_all, rtol=0, atol=5e-3)


@pytest.mark.parametrize("exchange", [*EXCHANGES, "lowrank"])
def test_nothing_is_lost_while_one_rank_has_frozen_a_layer(exchange):
    """What the way drops of the others' sum may come back to the very rank that takes no part."""

    def work(rank: ThreadRank):
        def gradients(step: int) -> list[torch.Tensor]:
            given_now = integers(rank.model, 100 * step + rank.rank)
            if step > 0 and rank.rank == 0:
                rank.model.tensors[0].requires_grad_(False)
                given_now[0].zero_()
            return given_now

        return train(rank, gradients, 3)

    results = on_thread_ranks(
        3,
        work,
        model=Weights(),
        compression=gradsieve_hvd.Compression.topk(0.1, min_elements=100),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1.0),
        op="sum",
        exchange=exchange,
    )
    given_in_all = torch.stack([result[0][0] for result in results]).sum(0)
    left = sum(result[2]["tensors.0"].view(given_in_all.shape) for result in results)
    torch.testing.assert_close(results[0][1][0] + left, given_in_all, rtol=0, atol=5e-3)
