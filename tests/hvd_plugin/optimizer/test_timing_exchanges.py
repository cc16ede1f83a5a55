"""What exchanges of a training tell of the link is the link's, whatever ranks do meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from queue import Queue
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timed_ranks import Busy, TimedLink, TimedTransport

from gradsieve_hvd.choice.costs import Link
from gradsieve_hvd.choice.link_estimate import LinkEstimate, ProbeBudget, Timing
from gradsieve_hvd.exchange import DenseExchange
from gradsieve_hvd.optimizer.counted_transport import CountedTransport
from gradsieve_hvd.optimizer.exchange_timing import Travelled, timings
from gradsieve_hvd.transport.base import Transport, begin_allgather
from gradsieve_hvd.transport.threads import run_ranks

FIRST = Link(5e-4, 1.25e8)
FEW_ELEMENTS = 30  # of what is not compressed
ROUNDS = 40
PROBING = 0.2  # of the time, so that few rounds do
PROBES = 1_000_000  # channels of their own


@dataclass
class Training:
    """One rank's rounds: buckets by a path as they become ready, then a small one that travels whole.

    sizes: of buckets, in bytes that a rank sends. busy: seconds of work with each message. apart: seconds
    from one bucket to the next.
    """

    timed: TimedTransport
    path: str
    sizes: list[int]
    busy: float
    apart: float
    began: float = 0.0
    rounds: int = 0

    def round(self) -> list[Timing]:
        waiting, done = [], []
        main = self.began
        channel = self.rounds * (len(self.sizes) + 1)
        for number, size in enumerate([*self.sizes, 0]):
            ready = (number + 1) * self.apart
            self.timed.now = max(main, self.began + ready)
            counted = CountedTransport(self.timed, channel + number, self.timed.clock)
            path = self.path if size else "dense"
            finish = self._begun(size, Busy(counted, self.timed, self.busy))
            main = self.timed.now
            waiting.append(
                (finish, Travelled(path, dict.fromkeys(range(self.timed.size), ready), main, counted))
            )
        self.timed.now = self.began
        for finish, travelled in waiting:
            self.timed.now = max(self.timed.now, travelled.submitted)
            finish()
            done.append(travelled)
        seen = timings(done, self.began)
        self.began = max(each.transport.heard for each in done)
        self.rounds += 1
        return seen

    def _begun(self, size: int, transport: Transport) -> Callable[[], Any]:
        if size and self.path == "allgather":
            part = torch.zeros(size // (transport.size - 1), dtype=torch.uint8)
            arriving = begin_allgather(transport, part)
            return lambda: list(arriving())
        sent = 2 * (transport.size - 1) / transport.size
        values = torch.ones(round(size / 4 / sent) or FEW_ELEMENTS)
        return lambda: DenseExchange().exchange(values, transport)

    def probe(self, size: int) -> Timing:
        """Exchange so many bytes, when nothing else travels and no rank is busy."""
        self.timed.now = self.began
        counted = CountedTransport(self.timed, PROBES + self.rounds, self.timed.clock)
        part = torch.zeros(max(size // (counted.size - 1), 1), dtype=torch.uint8)
        list(begin_allgather(counted, part)())
        self.began = self.timed.now
        return Timing(0, counted.sent_bytes, counted.heard - counted.sent_at)


def found(ranks: int, link: TimedLink, path: str, sizes: list[int], **how: float) -> Link:
    """Return what rank 0 takes the link for after some rounds."""
    orders = [Queue[int]() for _ in range(ranks)]

    def work(transport: Any) -> Link:
        training = Training(TimedTransport(transport, link), path, sizes, **how)
        estimate, budget = LinkEstimate(FIRST), ProbeBudget(PROBING)
        for number in range(ROUNDS):
            began = training.began
            seen = training.round()
            for timing in (seen[number % len(sizes)], seen[-1]):
                estimate.observe(timing)
            budget.passed(training.began - began)
            if transport.rank == 0:
                for queue in orders:
                    queue.put(budget.probe_bytes(estimate))
            if size := orders[transport.rank].get(timeout=20):
                probe = training.probe(size)
                estimate.observe(probe)
                budget.spent(probe.seconds)
        return estimate.link

    return run_ranks(ranks, work)[0]


@pytest.mark.parametrize("path", ["allgather", "dense"])
@settings(max_examples=6, deadline=None)
@given(
    ranks=st.integers(2, 3),
    delay=st.floats(2e-4, 1e-2),
    rate=st.floats(5e6, 2e7),
    moving=st.tuples(st.floats(1, 2), st.floats(3, 5)),
    busy=st.floats(0, 3),
    apart=st.floats(0, 6),
)
def test_delay_and_bandwidth_are_found_whatever_ranks_do_between_messages(
    path, ranks, delay, rate, moving, busy, apart
):
    """Times are multiples of the delay: ``moving`` the bytes of each bucket; see `Training`."""
    link = TimedLink(delay, rate)
    sizes = [round(times * delay * rate) for times in moving]
    estimate = found(ranks, link, path, sizes, busy=busy * delay, apart=apart * delay)
    assert estimate.start_up_seconds == pytest.approx(delay, rel=0.2)
    assert estimate.bytes_per_second == pytest.approx(rate, rel=0.2)
