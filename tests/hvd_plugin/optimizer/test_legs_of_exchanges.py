"""Where an exchange has two rounds of messages, each tells of the link by itself, and only what it knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from timed_ranks import Busy, TimedLink, TimedTransport

from gradsieve_hvd.choice.costs import Link
from gradsieve_hvd.choice.link_estimate import LinkEstimate, Timing
from gradsieve_hvd.exchange import DenseExchange
from gradsieve_hvd.optimizer.counted_transport import CountedTransport, Leg
from gradsieve_hvd.optimizer.exchange_timing import Travelled, timings
from gradsieve_hvd.transport.rest import Advancing
from gradsieve_hvd.transport.threads import run_ranks

SECONDS = st.floats(0.001, 10)


def exchange(*legs: Leg, path: str = "fp16", ready: float = 0.0) -> Travelled:
    """What a rank knows of one that all ranks could begin at once."""
    transport: Any = SimpleNamespace(rank=0, size=4, legs=list(legs))
    return Travelled(path, dict.fromkeys(range(4), ready), ready, transport)


def posted(sent_at: float, heard: float, waited: float | None = None, size: int = 1000) -> Leg:
    return Leg(True, sent_at, heard, size, heard - sent_at if waited is None else waited, rounds=1)


@given(SECONDS, SECONDS, SECONDS)
def test_neither_work_between_two_rounds_nor_the_second_one_counts(first, work, second):
    (seen,) = timings([exchange(posted(0.0, first), posted(first + work, first + work + second))], 0.0)
    assert (seen.seconds, seen.sent_bytes, seen.rounds) == (first, 1000, 1)
    assert seen.least_wire_seconds == seen.wire_seconds == first


def test_rounds_pass_the_link_one_after_another_whatever_they_belong_to():
    a, b, c = [posted(0.0, 2.0), posted(2.0, 5.0)], [posted(0.5, 4.0), posted(4.0, 7.0)], [posted(0.75, 8.0)]
    seen = timings([exchange(*a), exchange(*b), exchange(*c, path="dense")], 0.0)
    assert [each.seconds for each in seen] == [2.0, 2.0, 1.0]
    assert [each.travelled_seconds for each in seen] == [2.0, 3.5, 7.25]


def test_what_was_looked_for_late_does_not_hold_up_what_had_arrived_before():
    """A small sum leaves before another bucket, and is looked for behind it."""
    small, b = posted(0.5, 5.25, waited=0.0), posted(2.0, 5.0)
    seen = timings([exchange(posted(0.0, 2.0)), exchange(small, path="dense"), exchange(b)], 0.0)
    assert [each.seconds for each in seen] == [2.0, 0.25, 3.0]
    assert seen[1].travelled_seconds == 4.75


def test_rounds_tell_nothing_where_nobody_knows_when_buckets_were_ready():
    unknown = Travelled("fp16", {}, 0.0, exchange(posted(0.0, 1.0)).transport)
    assert timings([unknown], 0.0) == []


def test_what_tells_nothing_is_let_pass_all_the_same():
    unknown = Travelled("fp16", {}, 0.0, exchange(posted(0.0, 2.0)).transport)
    (seen,) = timings([unknown, exchange(posted(0.5, 3.0))], 0.0)
    assert (seen.seconds, seen.travelled_seconds) == (1.0, 2.5)


@given(st.floats(0.0, 2.0), st.floats(0.001, 0.1))
def test_a_start_up_is_not_longer_than_a_message_was_under_way(believed, travelled):
    """Else a start-up that is far too long would speak for itself, wherever messages follow one another."""
    estimate = LinkEstimate(Link(believed, 1e9))
    for _ in range(24):
        estimate.observe(Timing(0, 100, 1e-4, waited_seconds=0.0, travelled_seconds=travelled))
    assert estimate.link.start_up_seconds <= max(min(believed, travelled), 1e-4) * (1 + 1e-9)


@pytest.mark.parametrize("busy", [0.0, 0.05])
def test_the_first_of_two_rounds_lasts_as_long_as_the_link_takes(busy):
    link, values = TimedLink(delay=0.01, rate=1e6), torch.ones(100_000)

    def work(transport: Any) -> list[Timing]:
        timed = TimedTransport(transport, link)
        counted = CountedTransport(timed, 0, timed.clock)
        rest = DenseExchange("float16").begin(values, Busy(counted, timed, busy))
        assert isinstance(rest, Advancing)
        rest.advance()
        timed.now += 1.0  # with something else
        rest()
        return timings([Travelled("fp16", {0: 0.0, 1: 0.0}, 0.0, counted)], 0.0)

    (first,) = run_ranks(2, work)[0]
    block = 0.01 + 0.1  # half of the values, two bytes each
    assert first.least_wire_seconds == pytest.approx(block - busy, rel=0.01)  # it does something meanwhile
    assert first.wire_seconds == pytest.approx(block, rel=0.01)
