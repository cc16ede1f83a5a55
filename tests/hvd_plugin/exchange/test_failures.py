"""What goes wrong in mid-exchange ends in an error of every rank in time, and changes no residual."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from real_ranks import run_alone
from sole_tensor import SoleTensor

import gradsieve
from gradsieve.errors import ExchangeError, PayloadError
from gradsieve.sparse_gradient import SparseGradient
from gradsieve_hvd.exchange import (
    AllgatherExchange,
    DenseExchange,
    LowRankExchange,
    RingExchange,
    ScatterExchange,
)
from gradsieve_hvd.transport.base import Arriving, Transport
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks

pytestmark = pytest.mark.timeout(150)
RANKS = 3
ELEMENTS = 6000
FEW = 3000  # in two bytes each they travel at once
SPARSE = {
    "allgather": AllgatherExchange,
    "ring": RingExchange,
    "scatter": ScatterExchange,
    "scatter, int4": lambda: ScatterExchange("int4"),
}
DENSE = {
    "dense": DenseExchange,
    "fp16": lambda: DenseExchange("float16"),
    "fp16, few": lambda: DenseExchange("float16"),
    "lowrank": lambda: LowRankExchange([(60, 100)], 2),
}


class Breaking:
    """A transport whose ``number``-th message is not sent as it is: ``harm`` does something else."""

    def __init__(
        self, transport: Transport, number: int, harm: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self._transport, self._harm = transport, harm
        self.rank, self.size = transport.rank, transport.size
        self._left = itertools.count(number, -1)

    def send_receive(self, message: torch.Tensor, to: int, source: int) -> torch.Tensor:
        if next(self._left) == 0:
            message = self._harm(message)
        return self._transport.send_receive(message, to, source)

    def begin_allgather(self, message: torch.Tensor, channel: int = 0) -> Arriving:
        if 0 in [next(self._left) for _ in range(self.size - 1)]:
            message = self._harm(message)
        return self._transport.begin_allgather(message, channel)

    def begin_alltoall(self, messages: Sequence[torch.Tensor], channel: int = 0) -> Arriving:
        sent = [
            self._harm(message) if to != self.rank and next(self._left) == 0 else message
            for to, message in enumerate(messages)
        ]
        return self._transport.begin_alltoall(sent, channel)


def flipped(message: torch.Tensor) -> torch.Tensor:
    changed = message.clone()
    changed[message.numel() // 2] ^= 0x40
    return changed


def die(message: torch.Tensor) -> torch.Tensor:
    raise KeyboardInterrupt


def gradient(rank: int, elements: int = ELEMENTS) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(rank))


def whole(path: str, rank: int, more: int = 0) -> torch.Tensor:
    return gradient(rank, (FEW if path.endswith("few") else ELEMENTS) + more)


def residual(layer: SoleTensor) -> torch.Tensor:
    return layer.state_dict()["feedback"]["residual"]


def messages(sparse: bool) -> list[Any]:
    """Every message that a rank of three sends, by path; a scatter counts entries only the first time."""
    sent = {"allgather": 2, "ring": 4, "scatter": 4, "scatter, int4": 4}
    sent = sent if sparse else {"dense": 4, "fp16": 4, "fp16, few": 2, "lowrank": 8}
    return [pytest.param(path, each, id=f"{path}, {each}") for path in sent for each in range(sent[path])]


@pytest.mark.parametrize(("path", "number"), messages(sparse=True))
def test_a_corrupted_payload_is_refused_and_the_step_can_be_taken_again(path: str, number: int) -> None:
    config = gradsieve.Compression.topk(density=0.02)
    layers = [SoleTensor(config, ELEMENTS) for _ in range(RANKS)]
    exchanges = [SPARSE[path]() for _ in range(RANKS)]

    def work(transport: Transport, step: int) -> torch.Tensor:
        layer = layers[transport.rank]
        selected = layer.select(gradient(10 * step + transport.rank), step=step)
        result = exchanges[transport.rank].exchange(selected, transport)
        layer.reclaim(result.rejected)
        return result.total

    def harmed(transport: ThreadTransport) -> torch.Tensor:
        return work(Breaking(transport, number, flipped) if transport.rank == 1 else transport, 1)

    run_ranks(RANKS, lambda transport: work(transport, 0), timeout=20)
    for layer in layers:
        layer.commit()
    before = [residual(layer) for layer in layers]
    with pytest.raises(PayloadError):
        run_ranks(RANKS, harmed, timeout=20)
    for layer, kept in zip(layers, before, strict=True):
        layer.rollback()
        assert torch.equal(residual(layer), kept)
    total = run_ranks(RANKS, lambda transport: work(transport, 1), timeout=20)[0]
    for layer in layers:
        layer.commit()
    given = sum(gradient(10 + rank) for rank in range(RANKS)) + sum(before)
    assert torch.allclose(total + sum(residual(layer) for layer in layers), given, atol=1e-5)


@pytest.mark.parametrize(("path", "number"), messages(sparse=False))
def test_a_corrupted_block_of_a_dense_bucket_is_refused(path: str, number: int) -> None:
    def work(transport: ThreadTransport) -> None:
        harmed = Breaking(transport, number, flipped) if transport.rank == 1 else transport
        DENSE[path]().exchange(whole(path, transport.rank), harmed)

    with pytest.raises(PayloadError):
        run_ranks(RANKS, work, timeout=20)


@pytest.mark.parametrize(("path", "number"), [*messages(sparse=True), *messages(sparse=False)])
def test_a_rank_that_dies_is_named_by_who_waits_for_it(path: str, number: int) -> None:
    said: list[str] = []

    def work(transport: ThreadTransport) -> None:
        carried = Breaking(transport, number, die) if transport.rank == 1 else transport
        try:
            if path in SPARSE:
                bucket = gradient(transport.rank)
                everything = SparseGradient(ELEMENTS, torch.arange(ELEMENTS), bucket)
                exchange = SPARSE[path]()
                if path.startswith("scatter"):
                    exchange.exchange(everything, transport)
                exchange.exchange(everything, carried)
            else:
                DENSE[path]().exchange(whole(path, transport.rank), carried)
        except ExchangeError as error:
            said.append(str(error))
            raise

    with pytest.raises(KeyboardInterrupt):
        run_ranks(RANKS, work, timeout=20)
    assert any("rank 1 has failed (phase: " in each for each in said)


@pytest.mark.parametrize("path", [*SPARSE, *DENSE])
def test_ranks_with_buckets_of_different_sizes_get_an_error(path: str) -> None:
    def work(transport: ThreadTransport) -> None:
        elements = ELEMENTS if transport.rank else ELEMENTS + 100
        bucket = gradient(transport.rank, elements)
        if path == "lowrank":
            LowRankExchange([(60, elements // 60)], 2).exchange(bucket[: elements // 60 * 60], transport)
        elif path in DENSE:
            DENSE[path]().exchange(whole(path, transport.rank, 0 if transport.rank else 100), transport)
        else:
            SPARSE[path]().exchange(SparseGradient(elements, torch.arange(elements), bucket), transport)

    with pytest.raises(PayloadError, match="field 'elements'.*run the same model on all ranks"):
        run_ranks(RANKS, work, timeout=20)


@pytest.mark.parametrize("path", SPARSE)
@pytest.mark.parametrize("empty", [[0], [1, 2], [0, 1, 2]])
def test_a_rank_that_selects_nothing_takes_part(path: str, empty: list[int]) -> None:
    def work(transport: ThreadTransport) -> tuple[torch.Tensor, torch.Tensor]:
        mine = SparseGradient(ELEMENTS, torch.arange(0, ELEMENTS, 9), gradient(transport.rank)[::9])
        if transport.rank in empty:
            mine = SparseGradient.nothing(ELEMENTS)
        exchange = SPARSE[path]()
        exchange.exchange(mine, transport)  # blocks are balanced by what is there: nothing, perhaps
        result = exchange.exchange(mine, transport)
        assert not result.refused
        return result.total, result.rejected.dense()

    results = run_ranks(RANKS, work, timeout=20)
    wanted = torch.zeros(ELEMENTS)
    for rank in set(range(RANKS)) - set(empty):
        wanted[::9] += gradient(rank)[::9]
    conserved = results[0][0] + sum(rejected for _, rejected in results)
    assert torch.allclose(conserved, wanted, atol=1e-5)


START = """
import os, sys
sys.path.insert(0, {support!r})
import horovod.torch as hvd
hvd.init()
import torch
import gradsieve
from gradsieve.errors import GradsieveError
from gradsieve_hvd.exchange import RingExchange
from gradsieve_hvd.transport.choose import choose_transport
from training import end_together

chosen = choose_transport(hvd.global_process_set, timeout=4)

class Breaking:
    def __init__(self, transport):
        self.transport, self.rank, self.size, self.sent = transport, transport.rank, transport.size, 0

    def send_receive(self, message, to, source):
        self.sent += 1
        if self.rank == 1 and self.sent == 2:
            message = self.harm(message.clone())
        return self.transport.send_receive(message, to, source)

    def harm(self, message):
        {harm}

layer = gradsieve.LayerCompressor(gradsieve.Compression.topk(density=0.02), 6000)
generator = torch.Generator().manual_seed(hvd.rank())
layer.select(torch.randn(6000, generator=generator), gradsieve.Decision(0.02))
layer.commit()
before = layer.state_dict()["feedback"]["residual"]
selected = layer.select({gradient}, gradsieve.Decision(0.02))
refuse = isinstance(selected, gradsieve.Refusal)
try:
    selected = gradsieve.SparseGradient.nothing(6000) if refuse else selected
    result = RingExchange().exchange(selected, Breaking(chosen.transport), refuse=refuse)
    print(f"rank {{hvd.rank()}} refused: {{result.refused}}", flush=True)
except GradsieveError as error:
    print(f"rank {{hvd.rank()}} {{type(error).__name__}}: {{error}}", flush=True)
layer.rollback()
assert torch.equal(layer.state_dict()["feedback"]["residual"], before)
print(f"rank {{hvd.rank()}} is as before", flush=True)
{end}
"""
RANDOM = "torch.randn(6000, generator=generator)"
SUPPORT = str(Path(__file__).parents[2] / "support")
launched = pytest.mark.parametrize("gloo", [pytest.param(False, id="MPI"), pytest.param(True, id="Gloo")])


@launched
def test_real_ranks_end_in_time_when_a_payload_is_corrupted(gloo: bool, tmp_path: Path) -> None:
    harm = "message[20] ^= 1; return message"
    program = START.format(support=SUPPORT, harm=harm, gradient=RANDOM, end="end_together(hvd)")
    _, output = run_alone(program, RANKS, tmp_path, gloo=gloo, timeout=60)
    assert "rank 2 PayloadError: payload field 'checksum'" in output
    for rank in (0, 1):
        assert f"rank {rank} ExchangeError: rank {rank}: " in output
        assert "within 4 s" in output
    assert "(phase: reduce-scatter, round" in output or "(phase: all-gather, round" in output
    assert output.count("is as before") == RANKS


@launched
def test_real_ranks_end_in_time_when_one_is_killed_and_it_is_named(gloo: bool, tmp_path: Path) -> None:
    program = START.format(
        support=SUPPORT, harm="os.kill(os.getpid(), 9)", gradient=RANDOM, end="hvd.barrier()"
    )
    status, output = run_alone(program, RANKS, tmp_path, gloo=gloo, timeout=60)
    assert status != 0
    assert "rank 1 was ended by signal 9" in output


@launched
def test_real_ranks_all_refuse_when_one_has_nan(gloo: bool, tmp_path: Path) -> None:
    gradient = f"{RANDOM} if hvd.rank() else torch.full((6000,), torch.nan)"
    # A rank that looks seldom learns it last, when the others would have ended already.
    seldom = "import gradsieve_hvd.transport.mpi as mpi; mpi._SHORTEST_NAP = mpi._LONGEST_NAP = 1"
    harm = "return message" if gloo else f"{seldom}; return message"
    program = START.format(support=SUPPORT, harm=harm, gradient=gradient, end="")
    status, output = run_alone(program, RANKS, tmp_path, gloo=gloo, timeout=60)
    assert status == 0, output
    for rank in range(RANKS):
        assert f"rank {rank} refused: True" in output
        assert f"rank {rank} is as before" in output
