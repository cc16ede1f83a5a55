"""Ranks that are threads: a rank that fails or stays away is an error of all, soon."""

from __future__ import annotations

import pytest
import torch

from gradsieve.errors import ExchangeError
from gradsieve_hvd.transport.base import allgather, alltoall, begin_allgather
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks


def message(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.uint8)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_an_allgather_brings_messages_of_any_length_by_rank(ranks: int) -> None:
    def work(transport: ThreadTransport) -> list[list[int]]:
        mine = message(*[transport.rank] * transport.rank)
        return [each.tolist() for each in allgather(transport, mine)]

    assert run_ranks(ranks, work) == [[[rank] * rank for rank in range(ranks)]] * ranks


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_an_alltoall_brings_each_rank_what_is_meant_for_it(ranks: int) -> None:
    def work(transport: ThreadTransport) -> list[list[int]]:
        mine = [message(transport.rank, to) for to in range(ranks)]
        return [each.tolist() for each in alltoall(transport, mine)]

    assert run_ranks(ranks, work) == [[[source, rank] for source in range(ranks)] for rank in range(ranks)]


def test_allgathers_under_way_together_are_told_apart_by_their_channels() -> None:
    def work(transport: ThreadTransport) -> list[list[int]]:
        rank, order = transport.rank, (1, 2) if transport.rank else (2, 1)
        begun = {
            channel: begin_allgather(transport, message(10 * rank + channel), channel) for channel in order
        }
        swapped = transport.send_receive(message(rank), 1 - rank, 1 - rank)
        arrived = [int(each) for channel in (2, 1) for each in begun[channel]()]
        return [swapped.tolist(), arrived]

    assert run_ranks(2, work) == [[[1], [2, 12, 1, 11]], [[0], [2, 12, 1, 11]]]


def test_what_a_rank_raises_is_raised_and_the_others_do_not_wait_for_their_time_out() -> None:
    def work(transport: ThreadTransport) -> None:
        if transport.rank == 1:
            raise KeyError("broken")
        allgather(transport, message(0))

    with pytest.raises(KeyError, match="broken"):
        run_ranks(3, work, timeout=1000)


def test_a_rank_that_does_not_take_part_is_named() -> None:
    def work(transport: ThreadTransport) -> None:
        if transport.rank != 1:
            transport.send_receive(message(0), (transport.rank + 1) % 3, (transport.rank - 1) % 3)

    with pytest.raises(ExchangeError, match="rank 2: nothing from rank 1 within 0.2 s"):
        run_ranks(3, work, timeout=0.2)


def test_what_a_rank_sends_to_itself_is_not_counted() -> None:
    def work(transport: ThreadTransport) -> int:
        transport.send_receive(message(1, 2, 3), transport.rank, transport.rank)
        allgather(transport, message(1, 2))
        return transport.sent_bytes

    assert run_ranks(2, work) == [2, 2]
