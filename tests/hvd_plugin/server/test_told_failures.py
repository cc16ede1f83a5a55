"""An error that ends training on one rank is posted to all before its mail is closed."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from thread_ranks import SECONDS, ThreadRank, on_thread_ranks
from training import loss_of

from gradsieve.errors import NonFiniteGradient
from gradsieve_hvd.server import server_thread
from gradsieve_hvd.server.letters import Failure, unpack
from gradsieve_hvd.transport.thread_mail import ThreadMail


def test_mail_stays_open_until_the_thread_that_fails_has_posted_its_error(monkeypatch: Any) -> None:
    """It is held up there while the server's thread, which looks up meanwhile, would close it."""
    closed, order = threading.Event(), list[str]()
    post, close = ThreadMail.post, ThreadMail.close

    def held_up(mail: ThreadMail, letter: Any, to: int) -> None:
        if (mail.rank, to) == (1, 0) and isinstance(unpack(letter), Failure):
            closed.wait(0.3)
            order.append("posted")
        post(mail, letter, to)

    def noted(mail: ThreadMail, seconds: float) -> None:
        if mail.rank == 1:
            order.append("closed")
            closed.set()
        close(mail, seconds)

    monkeypatch.setattr(ThreadMail, "post", held_up)
    monkeypatch.setattr(ThreadMail, "close", noted)
    monkeypatch.setattr(server_thread, "_LOOK_SECONDS", 0.01)

    def train(rank: ThreadRank) -> None:
        for step in range(3):
            rank.optimizer.zero_grad()
            loss_of(rank.model, step, rank.rank).backward()
            if rank.rank == 1 and step == 2:
                next(rank.model.parameters()).grad.fill_(torch.inf)
            rank.optimizer.step()

    with pytest.raises(NonFiniteGradient):
        on_thread_ranks(2, train, mode="bsp")
    assert closed.wait(SECONDS)
    assert order == ["posted", "closed"]
