"""Whole gradients are summed where they lie, if the ranks' library can do that.

On real ranks, whose tensors lie on CPUs here: only the type of the device tells that from GPUs, on which the
tests in tests/hvd_plugin/gpu run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gloo_group import gloo
from real_ranks import on_ranks
from training import assert_same, laplace, loss_of, perceptron, sgd, weights

import gradsieve_hvd
from gradsieve.errors import ExchangeError
from gradsieve_hvd.exchange import DenseExchange
from gradsieve_hvd.optimizer.exchange_thread import ExchangeThread
from gradsieve_hvd.transport.base import DeviceSums, Transport, device_sums_for
from gradsieve_hvd.transport.choose import choose_transport
from gradsieve_hvd.transport.horovod import HorovodDeviceSums
from gradsieve_hvd.transport.torch_distributed import TorchDeviceSums, sums_by_nccl

ELEMENTS = 2000


def summing(hvd: Any, sums: DeviceSums) -> Transport:
    transport: Any = choose_transport(hvd.global_process_set, timeout=60).transport
    transport.device_sums = sums
    return transport


def each_kind(hvd: Any, timeout: float = 60) -> Iterator[DeviceSums]:
    """Both kinds; the second within a process group of its own."""
    yield HorovodDeviceSums(hvd.global_process_set, timeout, "test", device_type="cpu")
    with gloo(hvd):
        yield TorchDeviceSums(None, timeout, device_type="cpu")


def given(rank: int, number: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * number + rank)
    return torch.randint(-50, 50, (ELEMENTS,), generator=generator).float()


@on_ranks
def test_the_sum_is_that_of_all_ranks_and_what_is_given_stays(hvd: Any) -> None:
    expected = sum(given(rank) for rank in range(hvd.size()))
    for sums in each_kind(hvd):
        mine = given(hvd.rank())
        reduced = DenseExchange().exchange(mine, summing(hvd, sums))
        assert torch.equal(reduced.total, expected)
        assert torch.equal(mine, given(hvd.rank()))
        assert reduced.rejected is None


@on_ranks
def test_several_are_under_way_at_a_time_and_their_bytes_are_counted(hvd: Any) -> None:
    for sums in each_kind(hvd):
        thread = ExchangeThread(summing(hvd, sums), timeout=60)
        for _ in range(3):  # steps: the same names come again
            pending = [
                thread.submit(
                    lambda transport, number=number: DenseExchange().begin(
                        given(hvd.rank(), number), transport
                    ),
                    f"bucket {number}",
                )
                for number in range(5)
            ]
            for number, each in enumerate(pending):
                expected = sum(given(rank, number) for rank in range(hvd.size()))
                assert torch.equal(each.wait().total, expected)
                sent = round(2 * (hvd.size() - 1) / hvd.size() * 4 * ELEMENTS)
                assert (each.transport.sent_bytes, each.transport.received_bytes) == (sent, sent)


@on_ranks
def test_what_is_not_finite_on_one_rank_is_refused_on_all(hvd: Any) -> None:
    for sums in each_kind(hvd):
        transport = summing(hvd, sums)
        for bad in (torch.nan, torch.inf):
            mine = given(hvd.rank())
            if hvd.rank() == hvd.size() - 1:
                mine[7] = bad
            assert DenseExchange().exchange(mine, transport).refused
        refuse = hvd.rank() == 0
        assert DenseExchange().exchange(given(hvd.rank()), transport, refuse=refuse).refused
        assert not DenseExchange().exchange(given(hvd.rank()), transport).refused


@on_ranks
def test_a_rank_that_stays_away_is_an_error(hvd: Any) -> None:
    sums = HorovodDeviceSums(hvd.global_process_set, 1, "stays away", device_type="cpu")
    finish = None
    if hvd.rank() == 0:
        finish = sums.begin(given(0), "bucket 0")
        with pytest.raises(ExchangeError, match="rank 0: no sum of bucket 0 within 1 s"):
            finish()
    hvd.barrier()
    if finish is None:
        finish = sums.begin(given(hvd.rank()), "bucket 0")  # Horovod keeps what was begun
    finish()


@on_ranks
def test_a_rank_that_stays_away_is_an_error_with_torch_distributed(hvd: Any) -> None:
    with gloo(hvd):
        if hvd.rank() == 0:
            finish = TorchDeviceSums(None, 1, device_type="cpu").begin(given(0), "bucket 0")
            with pytest.raises(ExchangeError, match="rank 0: no sum of bucket 0 within 1 s"):
                finish()
        hvd.barrier()


@on_ranks
def test_an_optimizer_trains_as_without(hvd: Any) -> None:
    def trained(exchange: str, **settings: Any) -> list[torch.Tensor]:
        model = perceptron()
        compression = None if exchange == "dense" else laplace()
        optimizer = gradsieve_hvd.DistributedOptimizer(
            sgd(model), model.named_parameters(), compression, exchange=exchange, **settings
        )
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            optimizer.step()
        return weights(model)

    for exchange in ("dense", "allgather"):
        expected = trained(exchange)
        for sums in each_kind(hvd):
            assert_same(trained(exchange, transport=summing(hvd, sums)), expected, rtol=1e-5, atol=1e-7)


@on_ranks
def test_ranks_without_gpus_sum_on_their_cpus(hvd: Any) -> None:
    # This rank's gradients would lie on a GPU; Horovod was built without NCCL here, or others' lie elsewhere.
    on_gpu = not hvd.nccl_built() or hvd.rank() == 0
    transport: Any = choose_transport(hvd.global_process_set, timeout=60, on_gpu=on_gpu).transport
    assert transport.device_sums is None
    with gloo(hvd):
        assert not sums_by_nccl(None)


def test_only_tensors_on_such_devices_are_summed_there() -> None:
    class Nowhere:
        device_sums = TorchDeviceSums(None, 1)

    assert device_sums_for(torch.zeros(3, device="cpu"), Nowhere()) is None  # type: ignore[arg-type]
    assert device_sums_for(torch.zeros(3, device="meta"), Nowhere()) is None  # type: ignore[arg-type]
