"""A letter that is lost on its way is found out in a silence, by its number, on all ranks."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_ranks import ThreadRank, on_thread_ranks
from training import loss_of

from gradsieve.errors import ExchangeError
from gradsieve_hvd.server import server_thread
from gradsieve_hvd.server.letters import Count, unpack
from gradsieve_hvd.transport.thread_mail import ThreadMail

PATIENCE = 60.0  # far longer than any of these takes


def losing(monkeypatch: Any, sender: int, receiver: int, number: int) -> None:
    """Have one letter of a pair of ranks be lost; counts are none."""
    post, lock, posted = ThreadMail.post, threading.Lock(), [0]

    def lossy(mail: ThreadMail, letter: Any, to: int) -> None:
        if (mail.rank, to) == (sender, receiver) and not isinstance(unpack(letter), Count):
            with lock:
                posted[0] += 1
                if posted[0] == number:
                    return
        post(mail, letter, to)

    monkeypatch.setattr(ThreadMail, "post", lossy)


def training(mode: str, told: dict[int, str]) -> Any:
    def work(rank: ThreadRank) -> None:
        try:
            for step in range(25):
                rank.optimizer.zero_grad()
                loss_of(rank.model, step, rank.rank).backward()
                rank.optimizer.step()
            rank.optimizer.finish()
        except ExchangeError as error:
            told[rank.rank] = str(error)
            raise

    return work


@settings(max_examples=8, deadline=None)
@given(
    mode=st.sampled_from(["bsp", "asp", "ssp", "dasp"]),
    pair=st.sampled_from([(0, 1), (1, 0), (2, 0), (1, 2)]),
    number=st.integers(1, 10),
)
def test_all_ranks_are_told_who_lost_one_to_whom(mode, pair, number):
    told: dict[int, str] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_thread, "_COUNT_SECONDS", 0.1)
        losing(patch, *pair, number)
        with pytest.raises(ExchangeError):
            on_thread_ranks(3, training(mode, told), mode=mode, timeout=PATIENCE)
    assert set(told) == {0, 1, 2}
    found = re.search(
        r"rank (\d): rank (\d) has sent (\d+) letters and (\d+) have come", next(iter(told.values()))
    )
    assert found is not None, told
    receiver, sender, sent, came = map(int, found.groups())
    assert (sender, receiver) == pair
    assert sent == came + 1


def test_silence_alone_is_no_loss(monkeypatch):
    monkeypatch.setattr(server_thread, "_COUNT_SECONDS", 0.01)

    def work(rank: ThreadRank) -> int:
        for step in range(20):
            rank.optimizer.zero_grad()
            if rank.rank == 0 and step % 5 == 0:
                threading.Event().wait(0.1)
            loss_of(rank.model, step, rank.rank).backward()
            rank.optimizer.step()
        rank.optimizer.finish()
        return rank.optimizer.stats().steps

    assert on_thread_ranks(2, work, mode="bsp") == [20, 20]
