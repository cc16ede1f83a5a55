"""``server_ranks=``: which ranks keep weights in modes with a parameter server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from thread_ranks import ThreadRank, on_thread_ranks, plain_sgd
from torch import Tensor
from training import laplace, loss_of, weights

import gradsieve_hvd
from gradsieve.errors import ConfigurationError, RankMismatch
from gradsieve_hvd.server.server_thread import ServerThread

STEPS = 4


def step(rank: ThreadRank, number: int) -> None:
    rank.optimizer.zero_grad()
    loss_of(rank.model, number, rank.rank).backward()
    rank.optimizer.step(samples=4)


def train(rank: ThreadRank) -> tuple[list[Tensor], float]:
    for number in range(STEPS):
        step(rank, number)
    rank.optimizer.finish()
    return weights(rank.model), rank.optimizer.training.ledger.given


@pytest.mark.parametrize("chosen", [[0], [2], (1, 2), {0, 1, 2}])
def test_only_chosen_ranks_keep_weights_and_training_is_the_same(chosen: Any) -> None:
    expected, *_ = on_thread_ranks(3, train, mode="bsp", exchange="dense")
    ends = on_thread_ranks(3, train, mode="bsp", exchange="dense", server_ranks=chosen)
    for model, _ in ends:
        # Sums are rounded in the order in which pushes arrive.
        torch.testing.assert_close(model, expected[0], rtol=1e-5, atol=1e-6)
    assert {rank for rank, (_, given) in enumerate(ends) if given} == set(chosen)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, ...]]:
    """Ask for rank 1's server thread to be stopped, be told that it is, and let it go on."""
    asked, stands, released = threading.Event(), threading.Event(), threading.Event()
    serve = ServerThread._serve

    def serve_unless_stopped(server: ServerThread) -> bool:
        if server.rank == 1 and asked.is_set():
            stands.set()
            released.wait(30)
        return serve(server)

    monkeypatch.setattr(ServerThread, "_serve", serve_unless_stopped)
    yield asked, stands, released
    released.set()


def test_nobody_waits_for_a_stopped_rank_that_keeps_nothing(stopped: tuple[threading.Event, ...]) -> None:
    asked, stands, released = stopped

    def train(rank: ThreadRank) -> int:
        step(rank, 0)
        if rank.rank == 1:
            asked.set()
            released.wait(30)
        else:
            assert stands.wait(30)
            for number in range(1, STEPS):
                step(rank, number)
            assert not released.is_set()
            released.set()
        rank.optimizer.finish()
        return int(rank.optimizer.version)

    assert on_thread_ranks(2, train, mode="asp", server_ranks=[0]) == [STEPS + 1] * 2


@pytest.mark.parametrize("chosen", [[], [3], [-1], [True], ["0"], 0])
def test_what_are_not_ranks_is_refused(chosen: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"server_ranks=.*expected one or more of the ranks 0 to 2"):
        on_thread_ranks(3, train, mode="asp", server_ranks=chosen)


def test_ranks_that_choose_differently_are_told_so() -> None:
    def begin(rank: ThreadRank) -> None:
        rank.optimizer = gradsieve_hvd.DistributedOptimizer(
            plain_sgd(rank.model),
            rank.model.named_parameters(),
            laplace(),
            transport=rank.transport,
            mode="asp",
            server_ranks=[rank.rank],
        )
        with pytest.raises(RankMismatch, match='server_ranks is "0" on rank 0'):
            step(rank, 0)

    on_thread_ranks(2, begin, mode="asp")
