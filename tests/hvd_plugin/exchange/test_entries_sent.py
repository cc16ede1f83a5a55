"""Paths send as many entries as their formulas say; the bound holds for the rank that sends most."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from gradsieve.sparse_gradient import SparseGradient
from gradsieve_hvd.exchange import AllgatherExchange, RingExchange, ScatterExchange
from gradsieve_hvd.exchange.messages_sent import (
    Supports,
    allgather,
    dense_bytes,
    entries_of,
    ring,
    scatter,
)
from gradsieve_hvd.transport.base import Arriving
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks

ELEMENTS = 1 << 18
INDEX_BYTES = 2


def independent(density: float) -> Supports:
    return Supports.independent(ELEMENTS, density * ELEMENTS)


def ring_entries(ranks: int, density: float) -> float:
    return entries_of(ring(independent(density), ranks))


@pytest.mark.parametrize(
    ("density", "at_4", "at_8"), [(0.001, 222, 111), (0.01, 22.5, 11.4), (0.05, 4.7, 2.6), (0.1, 2.5, 1.5)]
)
def test_the_ring_saves_what_the_method_promises(density: float, at_4: float, at_8: float) -> None:
    for ranks, promised in ((4, at_4), (8, at_8)):
        sent = ring_entries(ranks, density) * (4 + INDEX_BYTES)
        # The promise is given with two or three digits.
        assert dense_bytes(ELEMENTS, ranks) / sent == pytest.approx(promised, rel=0.02)


@pytest.mark.parametrize(("density", "ranks"), [(0.01, 102), (0.05, 22), (0.1, 11), (0.001, 1002)])
def test_from_so_many_ranks_on_the_ring_sends_less_than_an_allgather(density: float, ranks: int) -> None:
    def saves(ranks: int) -> bool:
        return ring_entries(ranks, density) < entries_of(allgather(independent(density), ranks))

    assert saves(ranks + 1)
    assert not saves(ranks - 2)


class Counting:
    """A transport that counts the entries in what it sends."""

    def __init__(self, transport: ThreadTransport) -> None:
        self._transport, self.rank, self.size = transport, transport.rank, transport.size
        self.entries = 0

    def send_receive(self, message: torch.Tensor, to: int, source: int) -> torch.Tensor:
        self._count(message, 1)
        return self._transport.send_receive(message, to, source)

    def begin_allgather(self, message: torch.Tensor, channel: int = 0) -> Arriving:
        self._count(message, self.size - 1)
        return self._transport.begin_allgather(message, channel)

    def begin_alltoall(self, messages: Sequence[torch.Tensor], channel: int = 0) -> Arriving:
        for to, message in enumerate(messages):
            self._count(message, int(to != self.rank))
        return self._transport.begin_alltoall(messages, channel)

    def _count(self, message: torch.Tensor, times: int) -> None:
        from gradsieve.codec import split

        if message[:4].numpy().tobytes() == b"GRSV":
            self.entries += times * int((split(message, 1)[0].values != 0).sum())


def gradient(rank: int, density: float, skewed: bool) -> SparseGradient:
    """Independent supports; skewed ones lie in the first eighth of the tensor."""
    generator = torch.Generator().manual_seed(rank)
    within = ELEMENTS // 8 if skewed else ELEMENTS
    indices = torch.randperm(within, generator=generator)[: int(density * ELEMENTS)].sort().values
    return SparseGradient(ELEMENTS, indices, torch.randn(indices.numel(), generator=generator))


def sent(make, ranks: int, density: float, *, most: int | None = None, skewed: bool = False) -> list[int]:
    def work(transport: ThreadTransport) -> int:
        counting = Counting(transport)
        make().exchange(gradient(transport.rank, density, skewed), counting, most)
        return counting.entries

    return run_ranks(ranks, work)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_ring_sends_what_the_formula_says(ranks: int) -> None:
    wanted = ring_entries(ranks, 0.01)
    for entries in sent(RingExchange, ranks, 0.01):
        assert entries == pytest.approx(wanted, rel=0.03)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_an_allgather_sends_each_payload_to_all_others(ranks: int) -> None:
    assert sent(AllgatherExchange, ranks, 0.01) == [int(0.01 * ELEMENTS) * (ranks - 1)] * ranks


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("make", [RingExchange, ScatterExchange])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_rank_that_sends_most_keeps_the_bound(make, ranks: int, skewed: bool) -> None:
    most = int(0.01 * ELEMENTS)
    largest = max(sent(make, ranks, 0.01, most=most, skewed=skewed))
    bounded = entries_of(scatter(Supports.independent(ELEMENTS, most), ranks, most))
    assert bounded == pytest.approx(2 * most * (ranks - 1) / ranks)
    # Blocks of a scatter are balanced between cells of the 1 024th part of the tensor.
    assert largest <= 1.02 * bounded + 2 * ranks
