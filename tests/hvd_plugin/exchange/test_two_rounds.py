"""Exchanges of two rounds: the second of one leaves before an earlier exchange is finished."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import pytest
import torch
from real_ranks import on_ranks

from gradsieve.errors import ExchangeError
from gradsieve.sparse_gradient import SparseGradient
from gradsieve_hvd.exchange import DenseExchange, ScatterExchange
from gradsieve_hvd.exchange import base as exchanges
from gradsieve_hvd.exchange.dense import begin_bucket_exchange
from gradsieve_hvd.optimizer.exchange_thread import ExchangeThread
from gradsieve_hvd.transport.base import Transport
from gradsieve_hvd.transport.rest import Advancing, Rest
from gradsieve_hvd.transport.side_by_side import SideBySide
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks

ELEMENTS = 9_000
SECONDS = 20.0


class Swapping:
    """A transport that can do nothing but swap messages."""

    def __init__(self, inner: ThreadTransport) -> None:
        self._inner, self.rank, self.size = inner, inner.rank, inner.size

    def send_receive(self, message: torch.Tensor, to: int, source: int) -> torch.Tensor:
        return self._inner.send_receive(message, to, source)


class Alone:
    """A transport to nobody."""

    rank, size = 0, 1

    def send_receive(self, message: torch.Tensor, to: int, source: int) -> torch.Tensor:
        raise AssertionError


def gradient(rank: int) -> torch.Tensor:
    return torch.randint(-50, 50, (ELEMENTS,), generator=torch.Generator().manual_seed(rank)).float()


def begun(path: str, transport: Transport):
    values = gradient(transport.rank)
    if path == "fp16":
        return begin_bucket_exchange(DenseExchange("float16"), values, transport)
    exchange = ScatterExchange(rebalance=0)
    return exchanges.begin_exchange(
        exchange, SparseGradient(ELEMENTS, torch.arange(ELEMENTS), values), transport
    )


@pytest.mark.parametrize("path", ["fp16", "scatter"])
def test_it_is_advanced_only_where_messages_leave_at_once(path):
    assert all(run_ranks(2, lambda transport: isinstance(begun(path, transport), Advancing), SECONDS))

    def swapping(transport: ThreadTransport) -> torch.Tensor:
        rest = begun(path, Swapping(transport))
        assert not isinstance(rest, Advancing)
        return rest().total

    wanted = sum(gradient(rank) for rank in range(3))
    assert all(torch.equal(total, wanted) for total in run_ranks(3, swapping, SECONDS))


def test_second_rounds_are_sent_before_a_first_exchange_is_finished_and_results_come_in_order():
    done: list[str] = []
    all_are_there = threading.Event()

    def begin(name: str):
        def first() -> str:
            done.append(f"first {name}")
            return name

        def last(between: str) -> str:
            done.append(f"last {between}")
            return between

        def begin_it(_: Transport) -> Rest[str, str]:
            return Rest(first, last)

        return begin_it

    def hold(_: Transport):
        return lambda: all_are_there.wait(SECONDS)

    thread = ExchangeThread(Alone(), SECONDS)
    held = thread.submit(hold, "nothing")
    pending = [thread.submit(begin(name), name) for name in "abc"]
    all_are_there.set()
    assert held.wait()
    assert [each.wait() for each in pending] == ["a", "b", "c"]
    assert done == [f"first {name}" for name in "abc"] + [f"last {name}" for name in "abc"]


def test_what_fails_in_a_first_round_fails_there_and_all_that_comes_later():
    def failing(_: Transport):
        def first() -> None:
            raise ExchangeError("nothing from rank 1")

        return Rest(first, lambda _: 1)

    thread = ExchangeThread(Alone(), SECONDS)
    pending = [thread.submit(each, "a bucket") for each in (failing, lambda _: lambda: 1)]
    with pytest.raises(ExchangeError, match="nothing from rank 1"):
        pending[0].wait()
    with pytest.raises(ExchangeError, match="before this one has failed"):
        pending[1].wait()


def test_threads_start_work_in_its_order_some_at_a_time_and_raise_where_it_is_waited_for():
    side_by_side, go_on = SideBySide(2), threading.Event()
    started: queue.SimpleQueue[int] = queue.SimpleQueue()

    def work(number: int):
        def do() -> int:
            started.put(number)
            go_on.wait(SECONDS)
            if number == 3:
                raise ExchangeError("broken")
            return number

        return do

    waits = [side_by_side.start(work(number)) for number in range(5)]
    assert sorted(started.get(timeout=SECONDS) for _ in range(2)) == [0, 1]
    assert started.empty()
    go_on.set()
    assert [waits[number]() for number in (0, 1, 2, 4)] == [0, 1, 2, 4]
    with pytest.raises(ExchangeError, match="broken"):
        waits[3]()
    assert sorted(started.get(timeout=SECONDS) for _ in range(3)) == [2, 3, 4]


@on_ranks
def test_a_rank_that_has_more_under_way_than_another_waits_for_nobody_who_waits_for_it(hvd: Any) -> None:
    """Rank 0 advances a second bucket before it finishes the first; rank 1 finishes that before it has begun
    another. Messages are too long to leave before they are taken.
    """
    if not hvd.mpi_enabled():
        return
    from gradsieve_hvd.transport.mpi import MpiTransport

    elements, gates = 400_000, [threading.Event() for _ in range(2)]
    values = torch.arange(elements).float() + hvd.rank()
    thread = ExchangeThread(MpiTransport(timeout=15.0), SECONDS)

    def begin(transport: Transport) -> Any:
        gradient = SparseGradient(elements, torch.arange(elements), values)
        return exchanges.begin_exchange(ScatterExchange(rebalance=0), gradient, transport)

    def gate(number: int) -> None:
        """What is advanced behind it waits until it is open."""
        thread.submit(lambda _: Rest(lambda: gates[number].wait(SECONDS), lambda _: None), "a gate")

    gate(0)
    first = thread.submit(begin, "first")
    gate(1)
    if hvd.rank():
        gates[1].set()
    gates[0].set()
    time.sleep(0.5)  # rank 1 is within the end of the first one
    second = thread.submit(begin, "second")
    hvd.barrier()
    gates[1].set()
    wanted = hvd.size() * torch.arange(elements).float() + sum(range(hvd.size()))
    for each in (first, second):
        assert torch.equal(each.wait().total, wanted)
