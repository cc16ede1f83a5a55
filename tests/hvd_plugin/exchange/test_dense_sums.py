"""Dense sums of each way, begun one after another before any of them is finished."""

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradsieve_hvd.transport import ring_sum, sums
from gradsieve_hvd.transport.peers import Wait
from gradsieve_hvd.transport.rest import Advancing
from gradsieve_hvd.transport.side_by_side import SideBySide
from gradsieve_hvd.transport.sums import begin_sum, rounds_of_sum

SECONDS = 30
Line = queue.Queue[Callable[[], Tensor]]


class Queues:
    """One rank's, of each pair of ranks; sends read their memory as late as they may."""

    def __init__(self, lines: list[list[Line]], rank: int) -> None:
        self._lines, self._rank = lines, rank

    def send(self, values: Tensor, to: int) -> Wait:
        read: queue.Queue[None] = queue.Queue()

        def take() -> Tensor:
            taken = values.clone()
            read.put(None)
            return taken

        self._lines[self._rank][to].put(take)
        return lambda: read.get(timeout=SECONDS)

    def receive(self, into: Tensor, source: int) -> Wait:
        def wait() -> None:
            into.copy_(self._lines[source][self._rank].get(timeout=SECONDS)())

        return wait


@given(
    ranks=st.integers(2, 5),
    elements=st.lists(st.integers(0, 70), min_size=1, max_size=5),
    segment=st.integers(1, 9),
    few=st.integers(5, 20),
    at_once=st.integers(1, 3),
    advanced=st.booleans(),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=100, deadline=None)
def test_each_rank_gets_the_exact_sum_of_each(ranks, elements, segment, few, at_once, advanced, seed):
    noise = torch.Generator().manual_seed(seed)
    given_ = [[torch.randint(-99, 99, (n,), generator=noise).float() for n in elements] for _ in range(ranks)]
    kept = [[each.clone() for each in own] for own in given_]
    lines = [[[queue.Queue() for _ in range(ranks)] for _ in range(ranks)] for _ in elements]

    def work(rank: int) -> list[Tensor]:
        threads = SideBySide(at_once)
        begun = [
            begin_sum(values, rank, ranks, Queues(lines[number], rank), threads)
            for number, values in enumerate(given_[rank])
        ]
        for finish in begun:
            if advanced and isinstance(finish, Advancing):
                finish.advance()
        return [finish() for finish in begun]

    with (
        patch.object(ring_sum, "SEGMENT_ELEMENTS", segment),
        patch.object(sums, "SEGMENT_ELEMENTS", segment),
        patch.object(sums, "AT_ONCE_ELEMENTS", few),
        ThreadPoolExecutor(ranks) as pool,
    ):
        totals = list(pool.map(work, range(ranks)))
    for number in range(len(elements)):
        expected = sum(own[number] for own in kept)
        assert all(torch.equal(total[number], expected) for total in totals)
        assert all(torch.equal(own[number], old[number]) for own, old in zip(given_, kept, strict=True))


@given(elements=st.integers(0, 10_000_000), ranks=st.integers(2, 64))
def test_more_values_never_take_fewer_rounds(elements, ranks):
    assert rounds_of_sum(elements, ranks) <= rounds_of_sum(2 * elements, ranks) <= 2 * (ranks - 1)
