"""Trains behind a link that is re-shaped while it does; rank 0 prints what is known after each step, as JSON.

Every rank of ``gradsieve run --link`` runs this, with phases as in ``25@1000 25@50 100@1000>75``: steps at
a rate in Mbit/s, and no more of them once rank 0 knows of so much.
"""

from __future__ import annotations

import json
import math
import sys
import time

import torch
from pyroute2 import IPRoute

import gradsieve_hvd
from gradsieve_hvd.launcher.addresses import INTERFACE
from gradsieve_hvd.launcher.network import burst

ELEMENTS = 700
"""Of a side of each of two matrices."""
DENSITY = 0.25
"""Four ranks and two cores are busy with that for longer than a fast link needs for all of it."""
_QUEUE = 512 * 1024


def shape(mbit: int) -> None:
    """Limit what this rank sends."""
    rate = mbit * 10**6
    with IPRoute() as network:
        index = network.link_lookup(ifname=INTERFACE)[0]
        network.tc(
            "replace", "tbf", index=index, handle="1:", rate=rate // 8, burst=burst(rate), limit=_QUEUE
        )


def main(phases: list[str]) -> None:
    import horovod.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(ELEMENTS, ELEMENTS) for _ in range(2)))
    optimizer = gradsieve_hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-3),
        model.named_parameters(),
        gradsieve_hvd.Compression.topk(DENSITY, timeout_seconds=60),
        exchange="auto",
    )
    inputs = torch.randn(8, ELEMENTS)
    for phase in phases:
        steps, mbit = phase.split("@")
        mbit, _, enough = mbit.partition(">")
        mbit, enough = int(mbit), float(enough or "inf")
        shape(mbit)
        for step in range(int(steps)):
            began = time.monotonic()
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            if hvd.rank() == 0:
                known = optimizer.explain()
                told = {
                    "rate": mbit,
                    "step": step,
                    "path": known.path,
                    "epoch": known.epoch,
                    "trying": known.trying,
                    "mbit": known.bytes_per_second * 8e-6,
                    "start_up_ms": known.start_up_seconds * 1e3,
                    "milliseconds": round((time.monotonic() - began) * 1e3),
                }
                print(json.dumps(told), flush=True)
            if step % 5 == 4 and math.isfinite(enough):
                mine = optimizer.explain().bytes_per_second or 0.0
                if hvd.broadcast(torch.tensor(mine * 8e-6), root_rank=0, name="enough") > enough:
                    break


if __name__ == "__main__":
    main(sys.argv[1:])
