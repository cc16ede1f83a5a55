"""What each of two gloo ranks does for the tests of the DDP hook; prints a line of JSON per behaviour."""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import gradsieve_hvd

EXCHANGES = ("dense", "fp16", "bf16", "allgather", "ring", "scatter", "lowrank")
DDP_OPTIONS = ("gradient_as_bucket_view", "static_graph", "find_unused_parameters")
ALL = gradsieve_hvd.Compression.topk(density=1.0, min_elements=100)
FEW = gradsieve_hvd.Compression.topk(density=0.05, min_elements=100)


def say(name: str, value: object) -> None:
    print(json.dumps([name, value]), flush=True)


def data(step: int) -> Tensor:
    return torch.randn(8, 60, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))


def wrapped(compression: object = None, exchange: str = "", **options: bool) -> tuple:
    """Return a model in several DDP buckets, and its state if it has a hook."""
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(60, 50), torch.nn.ReLU(), torch.nn.Linear(50, 10))
    model = DistributedDataParallel(plain, bucket_cap_mb=0.005, **options)
    if not exchange:
        return model, None
    state = gradsieve_hvd.DdpState(model, compression, exchange=exchange)
    model.register_comm_hook(state, gradsieve_hvd.ddp_hook)
    return model, state


def backward(model: torch.nn.Module, step: int) -> None:
    model.zero_grad()
    model(data(step)).square().mean().backward()


def weights(compression: object = None, exchange: str = "", **options: bool) -> list[Tensor]:
    model, _ = wrapped(compression, exchange, **options)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(4):
        backward(model, step)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def same(one: object, other: object) -> bool:
    """Whether two nested states are equal, bit for bit."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    expected = weights()

    def error(**options: bool) -> float:
        return max(float((a - b).abs().max()) for a, b in zip(weights(**options), expected, strict=True))

    for exchange in EXCHANGES:
        say(exchange, error(compression=ALL, exchange=exchange))
    for option in DDP_OPTIONS:
        say(option, error(compression=ALL, exchange="allgather", **{option: True}))
    model, state = wrapped(FEW, "allgather")
    backward(model, 0)
    with model.no_sync():
        backward(model, 1)
    say("no_sync", state.reducer.step)
    saved = gradsieve_hvd.state_dict(state)
    bad = data(2)
    bad[0] = torch.nan if rank == 1 else 0.0
    try:
        model(bad).sum().backward()
    except gradsieve_hvd.NonFiniteGradient as refused:
        say("nonfinite", str(refused))
    kept = gradsieve_hvd.state_dict(state)
    say("kept", same(saved, kept))
    backward(model, 3)
    say("went on", state.reducer.step)
    with model.join():
        for step in range(2 + 2 * rank):
            backward(model, step)
    say("joined", state.reducer.step)
    gradsieve_hvd.load_state_dict(state, saved)
    say("loaded", state.reducer.step)
    other, _ = wrapped(ALL if rank else FEW, "allgather")
    try:
        backward(other, 0)
    except gradsieve_hvd.RankMismatch as mismatch:
        say("mismatch", str(mismatch))
    say("imported", sorted({"horovod", "mpi4py"} & sys.modules.keys()))
    last, _ = wrapped(FEW, "ring")
    for step in range(2):  # in the second, DDP rebuilds its buckets by a collective of its own
        backward(last, step)
    if rank == 1:
        os._exit(0)
    try:
        backward(last, 2)
    except gradsieve_hvd.ExchangeError as lost:
        say("lost", str(lost))
    os._exit(0)


if __name__ == "__main__":
    main()
