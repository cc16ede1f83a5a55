"""Over processes exchanges give the same bits as over threads, by Horovod and by torch.distributed."""

from __future__ import annotations

import datetime as dt
import socket
from typing import Any

import pytest
import torch
from real_ranks import on_ranks

from gradsieve.errors import ExchangeError
from gradsieve.sparse_gradient import SparseGradient
from gradsieve_hvd.exchange import AllgatherExchange, Exchange, Exchanged, RingExchange, ScatterExchange
from gradsieve_hvd.transport.base import Transport
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


@on_ranks
def test_over_horovod(hvd: Any) -> None:
    from gradsieve_hvd.transport.horovod import HorovodTransport

    assert_as_over_threads(HorovodTransport(hvd.global_process_set, timeout=60))


def start_gloo(hvd: Any) -> None:
    import torch.distributed as dist

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = hvd.broadcast_object(free.getsockname()[1])
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=hvd.rank(),
        world_size=hvd.size(),
        timeout=dt.timedelta(seconds=60),
    )


@on_ranks
def test_over_torch_distributed(hvd: Any) -> None:
    import torch.distributed as dist

    from gradsieve_hvd.transport.torch_distributed import TorchDistributedTransport

    start_gloo(hvd)
    assert_as_over_threads(TorchDistributedTransport(timeout=60))
    dist.destroy_process_group()


@on_ranks
def test_a_rank_that_stays_away_is_an_error_with_torch_distributed(hvd: Any) -> None:
    import torch.distributed as dist

    from gradsieve_hvd.transport.torch_distributed import TorchDistributedTransport

    start_gloo(hvd)
    if hvd.rank() == 0:
        transport = TorchDistributedTransport(timeout=1)
        with pytest.raises(ExchangeError, match="rank 0: sending to rank 1"):
            transport.send_receive(torch.zeros(5, dtype=torch.uint8), 1, hvd.size() - 1)
    hvd.barrier()
    dist.destroy_process_group()
