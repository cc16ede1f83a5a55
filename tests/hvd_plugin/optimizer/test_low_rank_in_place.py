"""Sums of low rank are written where they belong: the mean into the gradient, the rest into the residual."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_ranks import ThreadRank, on_thread_ranks

import gradsieve_hvd
from gradsieve.errors import NonFiniteGradient
from gradsieve.kernels import low_rank
from gradsieve.residual import NoResidual, Residual
from gradsieve.rounded_residual import RoundedResidual
from gradsieve_hvd.engine.whole_feedback import WholeFeedback
from gradsieve_hvd.exchange.lowrank import FactoredSum

ROWS, COLUMNS = 24, 40


def topk(**settings):
    return gradsieve_hvd.Compression.topk(min_elements=100, **settings)


def randomly(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def means(compression, *, dtype=torch.float32, turned=False, ranks=2):
    """Return the gradients of a matrix after one exchange, by rank."""

    def exchanged(rank: ThreadRank) -> torch.Tensor:
        parameter = rank.model.weight
        if turned:
            parameter.data = parameter.data.T.contiguous().T
        parameter.grad = torch.empty_like(parameter).copy_(randomly(ROWS, COLUMNS, seed=rank.rank))
        rank.optimizer.synchronize()
        return parameter.grad.clone()

    model = bare().to(dtype)
    return on_thread_ranks(ranks, exchanged, model=model, exchange="lowrank", compression=compression)


@settings(max_examples=30, deadline=None)
@given(
    rank=st.integers(1, 8),
    rows=st.integers(1, 30),
    columns=st.integers(1, 30),
    ranks=st.integers(1, 64),
    factor=st.sampled_from([1.0, 0.25, 1024.0]),
)
def test_one_pass_writes_the_product_and_takes_a_ranks_share_off(rank, rows, columns, ranks, factor):
    left, right, mine = randomly(rank, rows), randomly(rank, columns, seed=1), randomly(rows, columns, seed=2)
    out, rest = torch.empty(rows * columns), mine.flatten().clone()
    assert low_rank.approximate(left.numpy(), right.numpy(), rest.numpy(), ranks, factor, out.numpy())
    product = (left.double().T @ right.double()).flatten()
    torch.testing.assert_close(out.double(), factor * product, rtol=1e-5, atol=1e-5 * factor)
    torch.testing.assert_close(rest.double(), mine.flatten().double() - product / ranks, rtol=1e-5, atol=1e-5)


def test_a_product_that_overflows_is_found_though_its_share_would_not():
    out, rest = np.zeros(4, np.float32), np.zeros(4, np.float32)
    huge = np.full((1, 2), 3e19, np.float32)
    assert not low_rank.approximate(huge, huge, rest, 4.0, 0.25, out)


@pytest.mark.parametrize(
    ("feedback", "owned"), [(Residual(6), True), (RoundedResidual(6), False), (NoResidual(), False)]
)
def test_only_what_no_other_tensor_uses_may_be_overwritten(feedback, owned):
    whole = WholeFeedback(feedback, 6, "cpu")
    gradient = torch.arange(6.0)
    given_out = whole.begin(gradient, 1.0)
    assert whole.owned == owned
    if owned:
        given_out.mul_(0.5)
        whole.end(given_out)
        feedback.commit()
        assert torch.equal(whole.begin(torch.zeros(6), 1.0), 0.5 * torch.arange(6.0))
    assert torch.equal(gradient, torch.arange(6.0))


def test_what_was_written_in_place_is_gone_after_a_rollback():
    feedback = Residual(6)
    whole = WholeFeedback(feedback, 6, "cpu")
    given_out = whole.begin(torch.arange(6.0), 1.0)
    given_out.fill_(7.0)
    whole.end(given_out)
    feedback.rollback()
    assert not whole.begin(torch.zeros(6), 1.0).any()


@pytest.mark.parametrize(
    "compression",
    [
        pytest.param(topk(residual_dtype="bfloat16"), id="a residual in bf16"),
        pytest.param(topk(error_feedback=False), id="none"),
        pytest.param(topk(clip_norm=1e9), id="clipped"),
    ],
)
def test_a_mean_does_not_depend_on_what_keeps_the_rest(compression):
    for found, usual in zip(means(compression), means(topk()), strict=True):
        assert torch.equal(found, usual)


def test_a_gradient_that_lies_in_columns_gets_the_same_mean():
    for found, usual in zip(means(topk(), turned=True), means(topk()), strict=True):
        assert not found.is_contiguous()
        assert torch.equal(found, usual)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_16_bits_get_the_mean_rounded(dtype):
    for found, usual in zip(means(topk(), dtype=dtype), means(topk()), strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), usual, rtol=0.02, atol=0.02)


def test_a_refused_step_names_who_had_nan_and_leaves_the_residual():
    def trained(steps_with_nan: int) -> torch.Tensor:
        def work(rank: ThreadRank) -> torch.Tensor:
            step(rank, seed=rank.rank)
            for _ in range(steps_with_nan):
                with pytest.raises(NonFiniteGradient, match=r"'weight' on rank 1\."):
                    step(rank, seed=7, nan=rank.rank == 1)
            step(rank, seed=20 + rank.rank)
            return rank.model.weight.detach().clone()

        model = bare()
        with torch.no_grad():
            model.weight.zero_()
        return on_thread_ranks(2, work, model=model, exchange="lowrank", compression=topk())[0]

    assert torch.equal(trained(2), trained(0))


def test_a_sum_that_overflows_leaves_the_residual_though_the_step_is_taken(monkeypatch):
    """With a setting that lets it be taken, and a program that makes numbers of what is none."""
    write = FactoredSum.write

    def overflown(self: FactoredSum, factor: float, total: torch.Tensor, given: torch.Tensor) -> bool:
        write(self, factor, total, given)
        total[0] = given[0] = torch.inf
        return False

    def residual(rank: ThreadRank) -> torch.Tensor:
        return gradsieve_hvd.state_dict(rank.optimizer)["layers"]["weight"]["feedback"]["residual"]

    def work(rank: ThreadRank) -> None:
        step(rank, seed=rank.rank)
        before = residual(rank)
        assert before.any()
        rank.model.weight.grad = randomly(ROWS, COLUMNS, seed=3)
        with monkeypatch.context() as patched:
            patched.setattr(FactoredSum, "write", overflown)
            rank.optimizer.synchronize()
        assert not torch.isfinite(rank.model.weight.grad).all()
        rank.model.weight.grad.nan_to_num_()
        with rank.optimizer.skip_synchronize():
            rank.optimizer.step()
        assert torch.equal(residual(rank), before)

    on_thread_ranks(1, work, model=bare(), exchange="lowrank", compression=topk(nonfinite="propagate"))


def test_autograd_knows_that_a_gradient_was_overwritten():
    def work(rank: ThreadRank) -> None:
        rank.model.weight.grad = randomly(ROWS, COLUMNS)
        factor = torch.ones(ROWS, COLUMNS, requires_grad=True)
        uses = (factor * rank.model.weight.grad).sum()
        rank.optimizer.synchronize()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            uses.backward()

    on_thread_ranks(1, work, model=bare(), exchange="lowrank", compression=topk())


def bare() -> torch.nn.Module:
    return torch.nn.Linear(COLUMNS, ROWS, bias=False)


def step(rank: ThreadRank, seed: int, *, nan: bool = False) -> None:
    rank.optimizer.zero_grad()
    rank.model.weight.grad = randomly(ROWS, COLUMNS, seed=seed)
    if nan:
        rank.model.weight.grad[0, 0] = torch.nan
    rank.optimizer.step()
