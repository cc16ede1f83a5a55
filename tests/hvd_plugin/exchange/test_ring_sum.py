"""Sums around a ring, begun one after another before any of them is finished."""

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradsieve_hvd.transport import ring_sum
from gradsieve_hvd.transport.ring_sum import RingSum, Wait

SECONDS = 30


class Queues:
    """From one rank to the next; sends read their memory as late as they may."""

    def __init__(self, before: queue.Queue[Callable[[], Tensor]], after: queue.Queue[Callable[[], Tensor]]):
        self._before, self._after = before, after

    def send(self, values: Tensor) -> Wait:
        read: queue.Queue[None] = queue.Queue()

        def take() -> Tensor:
            taken = values.clone()
            read.put(None)
            return taken

        self._after.put(take)
        return lambda: read.get(timeout=SECONDS)

    def receive(self, into: Tensor) -> Wait:
        def wait() -> None:
            into.copy_(self._before.get(timeout=SECONDS)())

        return wait


@given(
    ranks=st.integers(2, 5),
    elements=st.lists(st.integers(0, 70), min_size=1, max_size=3),
    segment=st.integers(1, 9),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=60, deadline=None)
def test_each_rank_gets_the_exact_sum_of_each(ranks, elements, segment, seed):
    noise = torch.Generator().manual_seed(seed)
    given_ = [[torch.randint(-99, 99, (n,), generator=noise).float() for n in elements] for _ in range(ranks)]
    kept = [[each.clone() for each in own] for own in given_]
    lines = [[queue.Queue() for _ in elements] for _ in range(ranks)]

    def work(rank: int) -> list[Tensor]:
        sums = [
            RingSum(values, rank, ranks, Queues(lines[rank - 1][number], lines[rank][number]))
            for number, values in enumerate(given_[rank])
        ]
        return [each.finish() for each in sums]

    before, ring_sum._SEGMENT_ELEMENTS = ring_sum._SEGMENT_ELEMENTS, segment
    try:
        with ThreadPoolExecutor(ranks) as pool:
            totals = list(pool.map(work, range(ranks)))
    finally:
        ring_sum._SEGMENT_ELEMENTS = before
    for number in range(len(elements)):
        expected = sum(own[number] for own in kept)
        assert all(torch.equal(total[number], expected) for total in totals)
        assert all(torch.equal(own[number], old[number]) for own, old in zip(given_, kept, strict=True))
