"""PowerSGD: what it promises, step by step, and that nothing is lost on the way."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.exchange import LowRankExchange, Reduced
from gradsieve_hvd.exchange.dense import FloatDtype
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks

SHAPES = [(20, 30), (7,), (16, 3, 5), (3, 3), ()]
ELEMENTS = sum(math.prod(shape) for shape in SHAPES)


def exchanged(
    exchanges: list[LowRankExchange], given: list[torch.Tensor], refusing: int | None = None
) -> list[Reduced]:
    def work(transport: ThreadTransport) -> Reduced:
        rank = transport.rank
        return exchanges[rank].exchange(given[rank], transport, refuse=rank == refusing)

    return run_ranks(len(given), work, timeout=20)


def random(ranks: int, elements: int = ELEMENTS, seed: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(elements, generator=generator) for _ in range(ranks)]


def fresh(ranks: int, rank: int, shapes=SHAPES, dtype: FloatDtype = "float32") -> list[LowRankExchange]:
    return [LowRankExchange(shapes, rank, value_dtype=dtype) for _ in range(ranks)]


def assert_same_bits(results: list[Reduced]) -> None:
    for result in results:
        assert torch.equal(result.total.view(torch.int32), results[0].total.view(torch.int32))


@given(
    ranks=st.integers(1, 4),
    rank=st.integers(1, 8),
    shapes=st.lists(st.lists(st.integers(0, 12), max_size=3), max_size=4),
    steps=st.integers(1, 3),
    seed=st.integers(0, 99),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
)
@settings(max_examples=80, deadline=None)
def test_what_is_applied_and_what_is_rejected_are_what_was_given(
    ranks: int, rank: int, shapes: list[list[int]], steps: int, seed: int, dtype: FloatDtype
) -> None:
    exchanges = fresh(ranks, rank, shapes, dtype)
    elements = sum(math.prod(shape) for shape in shapes)
    for step in range(steps):
        given = random(ranks, elements, seed + step)
        results = exchanged(exchanges, given)
        assert_same_bits(results)
        conserved = results[0].total.double() + sum(result.rejected.double() for result in results)
        # A handful of fp32 sums of numbers below 10.
        wanted = torch.stack(given).double().sum(0)
        assert torch.allclose(conserved, wanted, rtol=0, atol=2e-5)


def test_a_sum_of_low_rank_is_exact() -> None:
    generator = torch.Generator().manual_seed(2)
    left = torch.randn(40, 3, generator=generator)
    given = [(left @ torch.randn(3, 50, generator=generator)).flatten() for _ in range(4)]
    results = exchanged(fresh(4, 3, [(40, 50)]), given)
    wanted = torch.stack(given).sum(0)
    # Of fp32's 24 bits a projection and its inverse leave some 18.
    assert torch.allclose(results[0].total, wanted, rtol=0, atol=4e-6 * float(wanted.abs().max()))


def test_a_matrix_whose_factors_are_no_smaller_is_exact() -> None:
    given = random(3, 64)
    results = exchanged(fresh(3, 4, [(8, 8)]), given)
    assert torch.allclose(results[0].total, torch.stack(given).sum(0), rtol=0, atol=1e-5)
    assert not any(result.rejected.any() for result in results)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_factors_of_16_bits_send_half_the_bytes(dtype: FloatDtype) -> None:
    def work(transport: ThreadTransport) -> int:
        LowRankExchange([(400, 500)], 4, value_dtype=dtype).exchange(random(1, 200_000)[0], transport)
        return transport.sent_bytes

    # 900 times four numbers of two bytes, to each of two ranks at once; 1 % for headers.
    for sent in run_ranks(3, work, timeout=20):
        assert sent == pytest.approx(2 * 2 * 4 * 900, rel=0.01)


def test_what_fp16_cannot_hold_waits_in_the_residuals() -> None:
    given = [1e6 * each for each in random(2, 600)]
    results = exchanged(fresh(2, 2, [(20, 30)], "float16"), given)
    assert float(results[0].total.abs().max()) < 1.1 * 65504
    conserved = results[0].total.double() + sum(result.rejected.double() for result in results)
    assert torch.allclose(conserved, torch.stack(given).double().sum(0), rtol=0, atol=2.0)


def paper_step(deltas: list[torch.Tensor], factor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Algorithm 1 in fp64, to the letter but for the mean: the decompressed mean, and the next Q."""
    left = torch.stack([delta @ factor for delta in deltas]).mean(0)
    orthogonal = torch.linalg.qr(left).Q
    right = torch.stack([delta.T @ orthogonal for delta in deltas]).mean(0)
    return orthogonal @ right.T, right


def test_five_steps_with_error_feedback_are_those_of_the_paper() -> None:
    ranks, rows, columns, rank = 3, 24, 40, 4
    exchanges = fresh(ranks, rank, [(rows, columns)])
    factor = exchanges[0].state_dict()["factors"][0].T.double()
    ours = [torch.zeros(rows * columns) for _ in range(ranks)]
    theirs = [torch.zeros(rows, columns, dtype=torch.float64) for _ in range(ranks)]
    for step in range(5):
        gradients = random(ranks, rows * columns, seed=10 + step)
        results = exchanged(
            exchanges, [gradient + error for gradient, error in zip(gradients, ours, strict=True)]
        )
        ours = [result.rejected for result in results]
        deltas = [
            gradient.view(rows, columns).double() + error
            for gradient, error in zip(gradients, theirs, strict=True)
        ]
        mean, factor = paper_step(deltas, factor)
        theirs = [delta - mean for delta in deltas]
        # Errors grow from step to step with what is fed back.
        assert torch.allclose(results[0].total.view(rows, columns).double() / ranks, mean, atol=1e-4)


def test_the_warm_start_comes_nearer_to_the_best_approximation() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(60, 60) @ torch.diag(torch.logspace(0, -2, 60)) @ torch.randn(60, 60)
    best = torch.linalg.svdvals(matrix)[4:].square().sum().sqrt()
    exchanges = fresh(1, 4, [(60, 60)])
    errors = [float(exchanged(exchanges, [matrix.flatten()])[0].rejected.norm()) for _ in range(15)]
    assert errors[0] > 1.05 * best
    assert errors[-1] < 1.01 * best


def test_a_gradient_that_was_zero_for_a_while_is_not_kept_zero() -> None:
    exchanges = fresh(2, 2, [(20, 30)])
    for _ in range(2):
        assert not exchanged(exchanges, [torch.zeros(600)] * 2)[0].total.any()
    assert exchanged(exchanges, random(2, 600))[0].total.any()


def test_a_rank_that_begins_later_with_a_factor_of_its_own_joins_the_others() -> None:
    exchanges = fresh(3, 2, [(20, 30)])
    exchanged(exchanges, random(3, 600))
    exchanges[1] = LowRankExchange([(20, 30)], 2, seed=77)
    given = random(3, 600, seed=5)
    results = exchanged(exchanges, given)
    assert_same_bits(results)
    conserved = results[0].total + sum(result.rejected for result in results)
    assert torch.allclose(conserved, sum(given), atol=1e-5)
    factors = [exchange.state_dict()["factors"][0] for exchange in exchanges]
    assert torch.equal(factors[0], factors[1])


def test_a_saved_state_goes_on_with_the_same_bits() -> None:
    exchanges, resumed = fresh(2, 3), fresh(2, 3)
    exchanged(exchanges, random(2))
    for old, new in zip(exchanges, resumed, strict=True):
        new.load_state_dict(old.state_dict())
    given = random(2, seed=9)
    assert torch.equal(exchanged(exchanges, given)[0].total, exchanged(resumed, given)[0].total)


@pytest.mark.parametrize("state", [{}, {"factors": []}, {"factors": [torch.ones(1, 30), torch.ones(1, 15)]}])
def test_a_state_of_another_bucket_is_refused(state: dict) -> None:
    with pytest.raises(ConfigurationError, match="field 'factors'"):
        LowRankExchange(SHAPES, 2).load_state_dict(state)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_if_one_rank_has_no_number_all_refuse_and_begin_the_next_step_as_they_were(value: float) -> None:
    exchanges = fresh(3, 2)
    exchanged(exchanges, random(3))
    before = exchanges[0].state_dict()["factors"]
    given = random(3, seed=4)
    given[1][5] = value
    for result in exchanged(exchanges, given):
        assert result.refused
        assert result.rejected is None
    for exchange in exchanges:
        assert all(torch.equal(*pair) for pair in zip(exchange.state_dict()["factors"], before, strict=True))


def test_if_one_rank_is_asked_to_refuse_all_do() -> None:
    assert all(result.refused for result in exchanged(fresh(3, 2), random(3), refusing=2))


@pytest.mark.parametrize("rank", [0, 9])
def test_a_rank_out_of_range_is_refused(rank: int) -> None:
    with pytest.raises(ConfigurationError, match="expected 1 to 8"):
        LowRankExchange(SHAPES, rank)


def test_a_bucket_of_another_size_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=f"has 12 elements, its shapes have {ELEMENTS}"):
        run_ranks(1, lambda transport: LowRankExchange(SHAPES, 2).exchange(torch.ones(12), transport))


@pytest.mark.parametrize("ranks", [2, 4])
def test_only_the_factors_are_sent(ranks: int) -> None:
    def work(transport: ThreadTransport) -> int:
        LowRankExchange([(400, 300), (300,)], 2).exchange(torch.ones(120_300), transport)
        return transport.sent_bytes

    values = 2 * (400 + 300) + 300
    for sent in run_ranks(ranks, work):
        assert sent == pytest.approx(2 * 4 * values * (ranks - 1) / ranks, rel=0.05)
