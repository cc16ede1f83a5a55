"""Over processes exchanges give the same bits as over threads, by whatever carries their messages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gloo_group import gloo
from real_ranks import on_ranks

from gradsieve.errors import ExchangeError
from gradsieve.sparse_gradient import SparseGradient
from gradsieve_hvd.exchange import (
    AllgatherExchange,
    DenseExchange,
    Exchange,
    Exchanged,
    LowRankExchange,
    Reduced,
    RingExchange,
    ScatterExchange,
)
from gradsieve_hvd.transport.base import AllReducing, BeginningSums, Transport, begin_allgather
from gradsieve_hvd.transport.choose import choose_transport
from gradsieve_hvd.transport.horovod_allgather import HorovodMessages
from gradsieve_hvd.transport.sums import AT_ONCE_ELEMENTS
from gradsieve_hvd.transport.threads import run_ranks

ELEMENTS = 20_000
MOST = 150


def gradient(rank: int) -> SparseGradient:
    generator = torch.Generator().manual_seed(rank)
    indices = torch.randperm(ELEMENTS, generator=generator)[:200].sort().values
    return SparseGradient(ELEMENTS, indices, torch.randn(200, generator=generator))


def assert_as_over_threads(transport: Transport) -> None:
    for make in (AllgatherExchange, RingExchange, ScatterExchange):

        def work(other: Transport, make: type[Exchange] = make) -> list[Exchanged]:
            exchange = make("bfloat16")
            return [exchange.exchange(gradient(other.rank), other, MOST) for _ in range(2)]

        for ours, theirs in zip(
            work(transport), run_ranks(transport.size, work)[transport.rank], strict=True
        ):
            assert torch.equal(ours.total, theirs.total)
            assert torch.equal(ours.rejected.dense(), theirs.rejected.dense())
    assert_dense_as_over_threads(transport)
    assert_allgathers_go_side_by_side(transport)
    if isinstance(transport, BeginningSums):
        assert_sums_go_side_by_side(transport)


def assert_sums_go_side_by_side(transport: Any) -> None:
    sizes = (0, 1, 7, AT_ONCE_ELEMENTS, AT_ONCE_ELEMENTS + 1, 23_169, 300_001, 1_000_000)

    def given(channel: int, rank: int) -> torch.Tensor:
        noise = torch.Generator().manual_seed(31 * channel + rank)
        return torch.randint(-1000, 1000, (sizes[channel],), generator=noise).float()

    own, ranks = transport.rank, range(transport.size)
    values = [given(channel, own) for channel in range(len(sizes))]
    begun = [transport.begin_allreduce(each, channel) for channel, each in enumerate(values)]
    for channel, finish in enumerate(begun):
        assert torch.equal(finish(), sum(given(channel, rank) for rank in ranks))
        assert torch.equal(values[channel], given(channel, own))


def assert_allgathers_go_side_by_side(transport: Transport) -> None:
    ranks = range(transport.size)
    begun = [
        begin_allgather(
            transport, torch.full((300_000 * channel,), transport.rank, dtype=torch.uint8), channel
        )
        for channel in range(3)
    ]
    for channel, arriving in enumerate(begun):
        messages = list(arriving())
        assert [message.numel() for message in messages] == [300_000 * channel for _ in ranks]
        assert all(bool((message == rank).all()) for rank, message in enumerate(messages))


def assert_dense_as_over_threads(transport: Transport) -> None:
    def work(other: Transport) -> list[Reduced]:
        lowrank = LowRankExchange([(100, 150), (5000,)], rank=2)
        bucket = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(other.rank))
        exchanges = (DenseExchange("float16"), DenseExchange("bfloat16"), lowrank, lowrank, DenseExchange())
        return [exchange.exchange(bucket, other) for exchange in exchanges]

    for ours, theirs in zip(work(transport), run_ranks(transport.size, work)[transport.rank], strict=True):
        if isinstance(transport, AllReducing | BeginningSums):  # in an order of its own
            assert torch.allclose(ours.total, theirs.total, atol=1e-4)
        else:
            assert torch.equal(ours.total, theirs.total)
        told = HorovodMessages(hvd_ranks(), 60).tell(ours.total.numpy().tobytes(), "total").wait()
        assert len(set(told)) == 1


def hvd_ranks() -> Any:
    import horovod.torch as hvd

    return hvd.global_process_set


@on_ranks
def test_over_horovod(hvd: Any) -> None:
    from gradsieve_hvd.transport.horovod import HorovodTransport

    assert_as_over_threads(HorovodTransport(hvd.global_process_set, timeout=60))


@on_ranks
def test_over_what_is_chosen(hvd: Any) -> None:
    chosen = choose_transport(hvd.global_process_set, timeout=60)
    if hvd.mpi_enabled():
        assert (chosen.name, chosen.why) == ("mpi4py", "it sends to single ranks")
    else:
        assert chosen.name == "Horovod"
        assert "not mpi4py: rank 0: Horovod does not run on MPI here" in chosen.why
        assert "not torch.distributed: rank 0: it is not initialised" in chosen.why
    assert_as_over_threads(chosen.transport)


@on_ranks
def test_over_torch_distributed(hvd: Any) -> None:
    from gradsieve_hvd.transport.torch_distributed import TorchDistributedTransport

    with gloo(hvd):
        if not hvd.mpi_enabled():
            assert choose_transport(hvd.global_process_set, timeout=60).name == "torch.distributed"
        assert_as_over_threads(TorchDistributedTransport(timeout=60))


@on_ranks
def test_a_rank_that_stays_away_is_an_error_with_torch_distributed(hvd: Any) -> None:
    from gradsieve_hvd.transport.torch_distributed import TorchDistributedTransport

    with gloo(hvd):
        if hvd.rank() == 0:
            transport = TorchDistributedTransport(timeout=1)
            with pytest.raises(ExchangeError, match="rank 0: sending to rank 1"):
                transport.send_receive(torch.zeros(5, dtype=torch.uint8), 1, hvd.size() - 1)
        hvd.barrier()
