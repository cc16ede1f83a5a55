"""Ranks that exchange different buckets are told so; nothing is added up."""

from __future__ import annotations

import pytest
import torch

from gradsieve.codec import Label, frame
from gradsieve.errors import PayloadError, RankMismatch
from gradsieve.sparse_gradient import SparseGradient
from gradsieve_hvd.exchange import RingExchange
from gradsieve_hvd.transport.framed import FramedTransport
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks

GRADIENT = SparseGradient(100, torch.arange(0, 100, 7), torch.ones(15))


def exchanged(labels: list[Label]) -> list[tuple[torch.Tensor, dict[int, float]]]:
    def work(transport: ThreadTransport) -> tuple[torch.Tensor, dict[int, float]]:
        framed = FramedTransport(transport, labels[transport.rank])
        return RingExchange().exchange(GRADIENT, framed).total, framed.ready_seconds

    return run_ranks(len(labels), work, timeout=20)


def test_exchanges_pass_through_and_all_ranks_know_when_the_last_one_was_ready() -> None:
    results = exchanged([Label(4, (60, 40), 1_000_000 * rank) for rank in range(3)])
    for rank, (total, ready) in enumerate(results):
        assert torch.equal(total, 3 * GRADIENT.dense())
        assert ready == {(rank - 1) % 3: pytest.approx(2)}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        pytest.param(Label(5, (60, 40)), "under plan", id="plan"),
        pytest.param(Label(4, (40, 60)), r"a bucket of 2 tensors \(40, 60 elements\)", id="order"),
        pytest.param(Label(4, (100,)), r"a bucket of 1 tensors \(100 elements\)", id="number"),
    ],
)
def test_another_plan_or_another_bucket_is_an_error(other: Label, message: str) -> None:
    with pytest.raises(RankMismatch, match=message):
        exchanged([Label(4, (60, 40)), other])


@pytest.mark.parametrize("damage", ["cut", "changed", "foreign"])
def test_what_is_damaged_on_the_way_is_refused_with_its_sender(damage: str) -> None:
    def work(transport: ThreadTransport) -> None:
        if transport.rank == 0:
            FramedTransport(transport, Label(0, (3,))).send_receive(torch.ones(3, dtype=torch.uint8), 1, 1)
            return
        message = frame(torch.ones(3, dtype=torch.uint8), Label(0, (3,)))
        if damage == "cut":
            message = message[:-1]
        elif damage == "changed":
            message[-6] ^= 1
        else:
            message = torch.zeros(30, dtype=torch.uint8)
        transport.send_receive(message, 0, 0)

    with pytest.raises(PayloadError, match="rank 0: message from rank 1: payload field"):
        run_ranks(2, work, timeout=20)
