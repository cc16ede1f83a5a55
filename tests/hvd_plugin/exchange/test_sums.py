"""Every path gives all ranks the same sum, and loses nothing on the way."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsieve.sparse_gradient import SparseGradient
from gradsieve_hvd.exchange import AllgatherExchange, Exchange, Exchanged, RingExchange, ScatterExchange
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks

PATHS = {
    "allgather": AllgatherExchange,
    "ring": partial(RingExchange, group=4),
    "scatter": ScatterExchange,
    "scatter-fixed": partial(ScatterExchange, rebalance=0),
}
paths = pytest.mark.parametrize("path", PATHS)
bounded_paths = pytest.mark.parametrize("path", ["ring", "scatter", "scatter-fixed"])


@st.composite
def gradients(draw: st.DrawFn) -> list[SparseGradient]:
    """Gradients of 1 to 5 ranks of one tensor with whole numbers: sums of these are exact."""
    elements = draw(st.integers(1, 60))
    found = []
    for _ in range(draw(st.integers(1, 5))):
        indices = sorted(draw(st.sets(st.integers(0, elements - 1))))
        values = [draw(st.integers(-1000, 1000)) for _ in indices]
        found.append(
            SparseGradient(elements, torch.tensor(indices, dtype=torch.int64), torch.tensor(values).float())
        )
    return found


def exchanged(path: str, given: list[SparseGradient], most: int | None = None, **options) -> list[Exchanged]:
    def work(transport: ThreadTransport) -> Exchanged:
        exchange: Exchange = PATHS[path](**options)
        return exchange.exchange(given[transport.rank], transport, most)

    return run_ranks(len(given), work, timeout=20)


def whole(gradients: list[SparseGradient]) -> torch.Tensor:
    return torch.stack([gradient.dense() for gradient in gradients]).sum(0)


def assert_same_bits(results: list[Exchanged]) -> None:
    for result in results:
        assert torch.equal(result.total.view(torch.int32), results[0].total.view(torch.int32))


@paths
@given(given=gradients())
@settings(max_examples=40, deadline=None)
def test_without_a_bound_the_total_is_the_sum(path: str, given: list[SparseGradient]) -> None:
    results = exchanged(path, given)
    assert_same_bits(results)
    assert torch.equal(results[0].total, whole(given))
    assert all(result.rejected.count == 0 and not result.refused for result in results)


@bounded_paths
@given(given=gradients(), most=st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_with_a_bound_what_is_not_in_the_total_is_rejected_by_a_rank(
    path: str, given: list[SparseGradient], most: int
) -> None:
    results = exchanged(path, given, most)
    assert_same_bits(results)
    assert torch.equal(results[0].total + whole([result.rejected for result in results]), whole(given))
    blocks = len(given)
    assert int((results[0].total != 0).sum()) <= -(-most // blocks) * blocks


@paths
@pytest.mark.parametrize("value_dtype", ["float16", "bfloat16", "int8", "int4", "int2"])
def test_what_rounding_takes_away_is_rejected(path: str, value_dtype: str) -> None:
    generator = torch.Generator().manual_seed(1)
    given = []
    for _ in range(4):
        indices = torch.randperm(5000, generator=generator)[:300].sort().values
        given.append(SparseGradient(5000, indices, torch.randn(300, generator=generator)))
    results = exchanged(path, given, most=400, value_dtype=value_dtype)
    assert_same_bits(results)
    assert not torch.equal(results[0].total, whole(given))
    conserved = results[0].total.double() + sum(result.rejected.dense().double() for result in results)
    wanted = sum(gradient.dense().double() for gradient in given)
    # A handful of sums in fp32, of numbers below 10.
    assert float((conserved - wanted).abs().max()) < 1e-5


@paths
@pytest.mark.parametrize("refusing", [0, 2])
@pytest.mark.parametrize("how", ["nan", "asked"])
def test_if_one_rank_refuses_all_ranks_know_and_nothing_is_applied(
    path: str, refusing: int, how: str
) -> None:
    def work(transport: ThreadTransport) -> Exchanged:
        gradient = SparseGradient(100, torch.arange(10), torch.ones(10))
        mine = transport.rank == refusing
        if mine and how == "nan":
            gradient = gradient.with_values(torch.full((10,), torch.nan))
        return PATHS[path]().exchange(gradient, transport, refuse=mine and how == "asked")

    for result in run_ranks(4, work, timeout=20):
        assert result.refused
        assert not result.total.any()
        assert result.rejected.count == 0


@pytest.mark.parametrize("path", ["ring", "scatter"])
def test_a_sum_that_becomes_infinite_is_refused_on_all_ranks(path: str) -> None:
    gradient = SparseGradient(64, torch.tensor([5]), torch.tensor([3e38]))
    assert all(result.refused for result in exchanged(path, [gradient, gradient]))


@paths
def test_torchs_default_type_is_left_alone(path: str) -> None:
    gradient = SparseGradient(64, torch.arange(0, 64, 3), torch.ones(22))
    torch.set_default_dtype(torch.float64)
    try:
        results = exchanged(path, [gradient] * 3, most=6)
    finally:
        torch.set_default_dtype(torch.float32)
    for result in results:
        assert {result.total.dtype, result.rejected.values.dtype} == {torch.float32}


@paths
def test_the_gradient_that_was_given_is_not_changed(path: str) -> None:
    given = [SparseGradient(64, torch.arange(0, 64, 3), torch.ones(22) * (rank + 1)) for rank in range(3)]
    before = [(gradient.indices.clone(), gradient.values.clone()) for gradient in given]
    exchanged(path, given, most=5)
    for gradient, (indices, values) in zip(given, before, strict=True):
        assert torch.equal(gradient.indices, indices)
        assert torch.equal(gradient.values, values)
