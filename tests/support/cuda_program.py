"""What each rank does for the tests of training on a GPU; rank 0 prints a line of JSON per behaviour.

Gradients are given, the same on CPU and GPU, so that what comes of them must have the same bits. NCCL refuses
two ranks of a host on one GPU; it takes them for ranks of different hosts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import torch
import torch.distributed as dist
from gloo_group import gloo
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import gradsieve_hvd
from gradsieve_hvd import Compression
from gradsieve_hvd.transport.choose import choose_transport

SHAPES = {"wide": (300, 400), "square": (64, 64), "bias": (400,), "deep": (8, 3, 5, 5)}
STEPS = 4
SELECTS = ("allgather", "ring", "scatter", "lowrank")
RULES: dict[str, Callable[[], Any]] = {
    "laplace": lambda: Compression.laplace(density=0.02, min_elements=100),
    "topk": lambda: Compression.topk(density=0.02, min_elements=100),
    "group_topk": lambda: Compression.group_topk(density=0.02, min_elements=100),
    "sampled": lambda: Compression.sampled(density=0.02, min_elements=100),
    "float16": lambda: Compression.laplace(density=0.02, min_elements=100, value_dtype="float16"),
    "int4": lambda: Compression.laplace(density=0.02, min_elements=100, value_dtype="int4"),
    "bfloat16 residuals": lambda: Compression.laplace(
        density=0.02, min_elements=100, residual_dtype="bfloat16"
    ),
    "clipping": lambda: Compression.laplace(density=0.02, min_elements=100, clip_norm=1.0),
}


def gradients(step: int, device: torch.device) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + hvd.rank())
    return {
        name: torch.randn(shape, generator=generator).pow_(3).to(device) for name, shape in SHAPES.items()
    }


def means(wrap: Callable[[Any, list[tuple[str, Tensor]]], Any], device: torch.device) -> list[Tensor]:
    """Return the gradients that an optimizer applies in each step, on the CPU."""
    named = [(name, torch.nn.Parameter(torch.zeros(shape, device=device))) for name, shape in SHAPES.items()]
    optimizer = wrap(torch.optim.SGD([each for _, each in named], 0.1, momentum=0.9), named)
    applied = []
    for step in range(STEPS):
        optimizer.zero_grad()
        given = gradients(step, device)
        torch.stack([(each * given[name]).sum() for name, each in named]).sum().backward()
        optimizer.synchronize()
        applied += [each.grad.detach().cpu().clone() for _, each in named]
        with optimizer.skip_synchronize():
            optimizer.step()
    return applied


def own(exchange: str, rule: str) -> Callable[[Any, list[tuple[str, Tensor]]], Any]:
    return lambda optimizer, named: gradsieve_hvd.DistributedOptimizer(
        optimizer, named, RULES[rule](), exchange=exchange
    )


def dropin(rule: str) -> Callable[[Any, list[tuple[str, Tensor]]], Any]:
    return lambda optimizer, named: hvd.DistributedOptimizer(optimizer, named, compression=RULES[rule]())


def difference(wrap: Callable[[Any, list[tuple[str, Tensor]]], Any]) -> float:
    """Return the largest difference between what CPU and GPU apply; NaN if the shapes differ."""
    on_cpu, on_gpu = (means(wrap, torch.device(each)) for each in ("cpu", "cuda"))
    largest = max(float((a - b).abs().max()) for a, b in zip(on_cpu, on_gpu, strict=True))
    assert any(bool(each.any()) for each in on_gpu), "nothing was applied"
    return max(hvd.allgather_object(largest))


def ddp_difference(exchange: str) -> float:
    """Return how far DDP with the hook, sending everything, gets from plain DDP in some steps on the GPU."""

    def weights(hooked: bool) -> list[Tensor]:
        torch.manual_seed(0)
        layers = torch.nn.Linear(60, 500), torch.nn.ReLU(), torch.nn.Linear(500, 10)
        model = DistributedDataParallel(torch.nn.Sequential(*layers).cuda(), bucket_cap_mb=0.05)
        if hooked:
            everything = Compression.topk(density=1.0, min_elements=100)
            model.register_comm_hook(
                gradsieve_hvd.DdpState(model, everything, exchange=exchange), gradsieve_hvd.ddp_hook
            )
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
            model.zero_grad()
            model(torch.randn(8, 60, generator=generator).cuda()).square().mean().backward()
            optimizer.step()
        return [each.detach() for each in model.parameters()]

    pairs = zip(weights(hooked=True), weights(hooked=False), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def amp_losses() -> list[float]:
    """Train a small model under autocast with a scaler whose first scales overflow."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)).cuda()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = gradsieve_hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), 3e-3),
        model.named_parameters(),
        Compression.laplace(density=0.05, min_elements=100, nonfinite="propagate"),
    )
    scaler = torch.amp.GradScaler(init_scale=2.0**40)
    generator = torch.Generator().manual_seed(hvd.rank())
    inputs = torch.randn(512, 64, generator=generator).cuda()
    wanted = inputs[:, :8].abs()
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = (model(inputs) - wanted).square().mean()
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss))
    return [losses[0], losses[-1], scaler.get_scale()]


def held_memory() -> list[int]:
    """Return the most bytes of GPU memory that were in use after a step: of 5 to 25, and of 80 to 100."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2000, 2000).cuda()
    optimizer = gradsieve_hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), Compression.laplace(density=0.01)
    )
    held = []
    for _ in range(100):
        optimizer.zero_grad()
        model(torch.randn(32, 2000, device="cuda")).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()
        held.append(torch.cuda.memory_allocated())
    return [max(held[5:25]), max(held[80:])]


def main() -> None:
    os.environ |= {"NCCL_HOSTID": os.environ["OMPI_COMM_WORLD_RANK"], "NCCL_SOCKET_IFNAME": "lo"}
    hvd.init()
    said: dict[str, Any] = {}

    def say(name: str, work: Callable[[], Any]) -> None:
        try:
            said[name] = work()
        except Exception as error:  # noqa: BLE001 - told to the test
            said[name] = f"{type(error).__name__}: {error}"
        if hvd.rank() == 0:
            print(json.dumps([name, said[name]]), flush=True)

    for exchange in (*SELECTS, "dense", "fp16", "bf16"):
        say(exchange, lambda exchange=exchange: difference(own(exchange, "laplace")))
    for rule in RULES:
        say(f"own, {rule}", lambda rule=rule: difference(own("allgather", rule)))
        if rule != "clipping":
            say(f"drop-in, {rule}", lambda rule=rule: difference(dropin(rule)))
    say("amp", amp_losses)
    say("memory", held_memory)
    say("nccl", lambda: [bool(hvd.nccl_built()), choose_transport(hvd.global_process_set, on_gpu=True).why])
    with gloo(hvd, "cpu:gloo,cuda:nccl"):
        for exchange in ("dense", "fp16", *SELECTS):
            say(f"ddp, {exchange}", lambda exchange=exchange: ddp_difference(exchange))
    hvd.shutdown()


if __name__ == "__main__":
    main()
