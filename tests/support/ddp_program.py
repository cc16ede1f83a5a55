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


class Branches(torch.nn.Module):
    """Two layers, of which not every step uses both."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.at_times = torch.nn.Linear(60, 50), torch.nn.Linear(60, 50)

    def forward(self, inputs: Tensor, both: bool) -> Tensor:
        return self.always(inputs) + self.at_times(inputs) if both else self.always(inputs)


def residual_of_an_unused_layer(exchange: str) -> bool:
    """Whether it is the same before and after a step that no rank has used the layer in."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Branches(), bucket_cap_mb=0.005, find_unused_parameters=True)
    state = gradsieve_hvd.DdpState(model, FEW, exchange=exchange, rank=1 if exchange == "lowrank" else None)
    model.register_comm_hook(state, gradsieve_hvd.ddp_hook)
    kept = []
    for step, both in enumerate((True, False)):
        model.zero_grad()
        model(data(step), both).square().mean().backward()
        kept.append(gradsieve_hvd.state_dict(state)["layers"]["at_times.weight"])
    return same(kept[0]["feedback"], kept[1]["feedback"]) and model.module.at_times.weight.grad is None


def gradient_in_a_group_of_its_own() -> float:
    """Return the mean gradient of a model that each rank trains by itself; it is the rank's number."""
    groups = [dist.new_group([rank], backend="gloo") for rank in range(dist.get_world_size())]
    layer = torch.nn.Linear(60, 50, bias=False)
    model = DistributedDataParallel(layer, process_group=groups[dist.get_rank()])
    model.register_comm_hook(gradsieve_hvd.DdpState(model, ALL), gradsieve_hvd.ddp_hook)
    (model(torch.ones(1, 60)).sum() * dist.get_rank()).backward()
    return float(layer.weight.grad.mean())


def refusal(make: object) -> str:
    try:
        make()
    except gradsieve_hvd.ConfigurationError as refused:
        return str(refused)
    return ""


def say_of_layers_and_groups() -> None:
    for exchange in ("allgather", "scatter", "lowrank"):
        say(f"unused {exchange}", residual_of_an_unused_layer(exchange))
    say("own group", gradient_in_a_group_of_its_own())
    unused = {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}
    say("skipping", refusal(lambda: wrapped(FEW, "allgather", **unused)))
    model = wrapped()[0]
    one = dist.new_group([0])
    if dist.get_rank() == 0:
        say("other group", refusal(lambda: gradsieve_hvd.DdpState(model, FEW, process_group=one)))


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
    say_of_layers_and_groups()
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
