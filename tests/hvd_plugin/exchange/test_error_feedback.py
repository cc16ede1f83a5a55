"""With error feedback nothing is lost over steps, whatever the values' type; drops go to who dropped."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sole_tensor import SoleTensor

from gradsieve import Compression
from gradsieve.sparse_gradient import SparseGradient
from gradsieve_hvd.exchange import AllgatherExchange, Exchange, Exchanged, RingExchange, ScatterExchange
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks

PATHS = {"allgather": AllgatherExchange, "ring": partial(RingExchange, group=16), "scatter": ScatterExchange}
VALUE_DTYPES = ["float32", "float16", "bfloat16", "int8", "int4", "int2"]
ELEMENTS = 600


class Rank:
    """One rank's layer and exchange, and what it was given so far."""

    def __init__(self, rank: int, exchange: Exchange, seed: int, whole: bool) -> None:
        self.layer = SoleTensor(Compression.topk(density=0.05), ELEMENTS)
        self.given = torch.zeros(ELEMENTS, dtype=torch.float64)
        self._exchange, self._whole = exchange, whole
        self._generator = torch.Generator().manual_seed(100 * seed + rank)

    def take(self, step: int, most: int | None, transport: ThreadTransport) -> torch.Tensor:
        gradient = torch.randn(ELEMENTS, generator=self._generator)
        gradient = (100 * gradient).round() if self._whole else gradient
        self.given += gradient
        result = self._exchange.exchange(self.layer.select(gradient, step=step), transport, most)
        self.layer.reclaim(result.rejected)
        self.layer.commit()
        return result.total


def trained(
    path: str, ranks: int, steps: int, most: int | None, value_dtype: str, seed: int, *, whole: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """What was applied in all steps with what residuals hold, and what was given (fp64)."""
    workers = [Rank(rank, PATHS[path](value_dtype), seed, whole) for rank in range(ranks)]
    applied = torch.zeros(ELEMENTS, dtype=torch.float64)
    for step in range(steps):
        totals = run_ranks(
            ranks,
            lambda transport, step=step: workers[transport.rank].take(step, most, transport),
            timeout=20,
        )
        assert all(torch.equal(totals[0], total) for total in totals)
        applied += totals[0]
    held = sum(worker.layer.state_dict()["feedback"]["residual"].double() for worker in workers)
    return applied + held, sum(worker.given for worker in workers)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("value_dtype", VALUE_DTYPES)
@given(
    ranks=st.integers(1, 4),
    steps=st.integers(1, 4),
    most=st.none() | st.integers(1, 60),
    seed=st.integers(0, 99),
)
@settings(max_examples=10)
def test_what_was_applied_and_what_is_held_are_what_was_given(
    path: str, value_dtype: str, ranks: int, steps: int, most: int | None, seed: int
) -> None:
    conserved, wanted = trained(path, ranks, steps, most, value_dtype, seed)
    # A few dozen fp32 sums of numbers below 16.
    assert torch.allclose(conserved, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("path", PATHS)
@given(
    ranks=st.integers(1, 4),
    steps=st.integers(1, 4),
    most=st.none() | st.integers(1, 60),
    seed=st.integers(0, 99),
)
@settings(max_examples=10)
def test_with_whole_numbers_it_is_so_to_the_bit(
    path: str, ranks: int, steps: int, most: int | None, seed: int
) -> None:
    conserved, wanted = trained(path, ranks, steps, most, "float32", seed, whole=True)
    assert torch.equal(conserved, wanted)


def exchanged_by_one(path: str, most: int) -> tuple[SparseGradient, list[Exchanged]]:
    """Only rank 1 of four has entries."""
    values = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(1))
    gradient = SparseGradient(ELEMENTS, torch.arange(ELEMENTS), values)

    def work(transport: ThreadTransport) -> Exchanged:
        mine = gradient if transport.rank == 1 else SparseGradient.nothing(ELEMENTS)
        return PATHS[path]().exchange(mine, transport, most)

    return gradient, run_ranks(4, work, timeout=20)


def test_a_ring_drops_where_entries_are_first_too_many() -> None:
    gradient, results = exchanged_by_one("ring", 40)
    assert [result.rejected.count for result in results] == [0, ELEMENTS - 40, 0, 0]
    assert torch.equal(results[1].rejected.dense() + results[0].total, gradient.dense())


def test_a_scatter_drops_at_the_owner_of_a_block() -> None:
    _, results = exchanged_by_one("scatter", 40)
    assert [result.rejected.count for result in results] == [ELEMENTS // 4 - 10] * 4
    for first, second in itertools.pairwise(results):
        assert first.rejected.indices.max() < second.rejected.indices.min()
