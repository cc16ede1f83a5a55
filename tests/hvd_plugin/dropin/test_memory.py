"""What a rank has in use stays level from step to step, also where densities and so payloads vary."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import torch
from real_ranks import on_ranks
from torch import nn
from training import TIMEOUT, batch, distribute, sgd

import gradsieve
import gradsieve_hvd
from gradsieve.losses import LossRecorder
from gradsieve_hvd.optimizers import reducer_of

ROUNDS, STEPS = 8, 5
SETTLED = 3  # rounds until all lists and caches have had their largest contents
LEVEL = 256 * 1024
"""Bytes in 40 steps. Those with high densities have payloads of some 40 kB, gradients of 168 kB and
activations of 22 kB: keeping any of them would be 400 kB and more. glibc counts what it caches per thread as
in use: up to seven pieces of each size below 1 KiB, which payloads of many sizes fill by and by.
"""


class _Allocated(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def bytes_in_use() -> int:
    """What was allocated and not freed, as the allocator counts it; what it keeps for later is not in it."""
    gc.collect()
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _Allocated
    found = ask()
    return int(found.uordblks + found.hblkhd)


def own(_: Any, model: nn.Module, compression: Any) -> Any:
    return gradsieve_hvd.DistributedOptimizer(sgd(model), model.named_parameters(), compression)


@on_ranks
def test_memory_in_use_is_level_while_densities_rise_and_fall(hvd: Any) -> None:
    for front_door in (distribute, own):
        assert_level(hvd, front_door)


def assert_level(hvd: Any, front_door: Any) -> None:
    recorder = LossRecorder()
    for _ in range(256):  # what it keeps at most
        recorder.record(torch.zeros(8))
    model = nn.Sequential(nn.Linear(60, 700), nn.ReLU(), nn.Linear(700, 10))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    compression = gradsieve_hvd.Compression.importance(
        density=0.01, min_elements=100, timeout_seconds=TIMEOUT, recorder=recorder, period=STEPS
    )
    optimizer = front_door(hvd, model, compression)
    used = []
    for _ in range(ROUNDS):
        for density in (0.25, 0.01):
            for step in range(STEPS):
                optimizer.zero_grad()
                inputs, targets = batch(step, hvd.rank())
                gradsieve.cross_entropy(model(inputs), targets, recorder=recorder).backward()
                policy: Any = reducer_of(optimizer).policy
                policy.density = density
                optimizer.step()
        used.append(bytes_in_use())
    grown = hvd.allreduce(torch.tensor(float(used[-1] - used[SETTLED])), op=hvd.Max)
    assert grown < LEVEL, used
