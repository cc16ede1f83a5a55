"""Horovod's own messages take a small part of a slow link while something else carries the gradients."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from real_ranks import run_alone

from gradsieve_hvd.optimizer.connection import Connection
from gradsieve_hvd.optimizer.counted_transport import CountedTransport, Leg
from gradsieve_hvd.optimizer.horovod_pace import HorovodPace, cycle_for
from gradsieve_hvd.transport import horovod_cycle
from gradsieve_hvd.transport.horovod import HorovodTransport
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks

MBIT = 1e6 / 8


@pytest.mark.parametrize(
    ("mbit", "ranks", "milliseconds"),
    [(10, 4, 16), (50, 4, 3.2), (1000, 4, 1), (10, 2, 8), (10, 16, 20), (1, 2, 20)],
)
def test_looks_take_a_hundredth_of_the_link_between_horovods_own_time_and_20_ms(mbit, ranks, milliseconds):
    assert cycle_for(mbit * MBIT, ranks) == pytest.approx(milliseconds)


@pytest.fixture
def told(monkeypatch) -> list[float]:
    """What Horovod is told, by a process in which it runs."""
    milliseconds: list[float] = []
    monkeypatch.setattr(horovod_cycle, "can_be_slowed", lambda: True)
    monkeypatch.setattr(horovod_cycle, "look_at_most_every", milliseconds.append)
    return milliseconds


def travelled(mbit: float, size: int = 150_000) -> CountedTransport:
    """A bucket that has travelled at such a rate."""
    counted = CountedTransport(SimpleNamespace(rank=0, size=4), 0)  # type: ignore[arg-type]
    counted.legs.append(Leg(posted=True, sent_at=1.0, heard=1.0 + size / (mbit * MBIT), sent_bytes=size))
    return counted


def paced(transport: Any, step_seconds: float = 1.0) -> HorovodPace:
    return HorovodPace(Connection(transport, 20), itertools.count(0.0, step_seconds).__next__)


def test_it_follows_the_link_and_leaves_horovod_as_it_was_in_the_end(told):
    pace = paced(SimpleNamespace(rank=0, size=4))
    for _ in range(19):
        pace.end_round([travelled(4), travelled(10), travelled(400, size=20_000)])
    assert told == []  # not yet sure
    for _ in range(30):
        pace.end_round([travelled(10)])
    assert told == [pytest.approx(16)]
    for mbit in (9, 1, 11, 10) * 20:  # a rank is waited for now and then, or most of the time
        pace.end_round([travelled(mbit)])
    pace.end_round([travelled(400)])  # a burst
    for _ in range(30):
        pace.end_round([travelled(10)])
    assert len(told) == 1
    for _ in range(40):
        pace.end_round([travelled(1000)])
    assert told[1:] == [1.0]
    del pace
    assert told[2:] == [0.0]


def test_a_fiftieth_of_a_step_is_the_most(told):
    pace = paced(SimpleNamespace(rank=0, size=4), step_seconds=0.3)
    for _ in range(30):
        pace.end_round([travelled(10)])
    assert told == [pytest.approx(6)]


def test_rounds_of_few_bytes_tell_nothing(told):
    pace = paced(SimpleNamespace(rank=0, size=4))
    for _ in range(50):
        pace.end_round([travelled(0.1, size=60_000)])
    assert told == []


def test_nothing_is_slowed_where_horovod_carries_gradients_itself(told):
    ranks = SimpleNamespace(rank=lambda: 0, size=lambda: 4)
    pace = paced(HorovodTransport(ranks))
    for _ in range(50):
        pace.end_round([travelled(10)])
    assert told == []


def test_without_horovod_nothing_happens():
    def work(transport: ThreadTransport) -> None:
        pace = paced(transport)
        for _ in range(50):
            pace.end_round([travelled(10)])

    run_ranks(2, work, timeout=20)
    assert not horovod_cycle.can_be_slowed()


PROGRAM = """
import os, time
os.environ.pop("HOROVOD_CYCLE_TIME", None)
import horovod.torch as hvd, torch
from gradsieve_hvd.transport.horovod_cycle import can_be_slowed, look_at_most_every
assert not can_be_slowed()
hvd.init()
assert can_be_slowed()

def seconds():
    began = time.perf_counter()
    for number in range(10):
        hvd.allreduce(torch.ones(1), name=str(number))
    return time.perf_counter() - began

seconds()
look_at_most_every(50)
seconds()
assert seconds() > 0.4  # each waits for the next look
look_at_most_every(0)
seconds()
os.environ["HOROVOD_CYCLE_TIME"] = "1"
assert not can_be_slowed()
hvd.shutdown()
"""


@pytest.mark.parametrize("gloo", [False, True])
def test_the_time_between_looks_changes_while_horovod_runs(tmp_path, gloo):
    status, printed = run_alone(PROGRAM, 2, tmp_path, gloo=gloo)
    assert status == 0, printed
