"""What it gains that `DynamicSampler` deals batches to whoever asks: seconds an epoch, with a slow rank.

::

    gradsieve run -np 4 --slow 3:4x -- python benchmarks/dealt_epochs.py dasp --dealt
    gradsieve run -np 4 --slow 3:4x -- python benchmarks/dealt_epochs.py dasp
    gradsieve run -np 4 --slow 3:4x -- python benchmarks/dealt_epochs.py bsp

Without ``--dealt`` each rank has the same number of samples of each epoch, as with a `DistributedSampler`.
Time is that from the first step of all ranks until the last one has ended its last epoch.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import horovod.torch as hvd
import torch

import gradsieve_hvd
from gradsieve_hvd.experiments.tasks import TASKS


def fixed(samples: int, batch: int, epoch: int) -> Iterator[Sequence[int]]:
    """Yield this rank's batches of an epoch: every rank has as many samples."""
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(epoch))
    own = order[hvd.rank() :: hvd.size()].tolist()
    for first in range(0, len(own), batch):
        yield own[first : first + batch]


def train(asked: argparse.Namespace) -> dict[str, Any]:
    """Train, and return what this rank saw."""
    task = TASKS[asked.task]()
    model = task.model(asked.seed)
    optimizer = gradsieve_hvd.DistributedOptimizer(
        task.optimizer(model),
        model.named_parameters(),
        mode="synchronous" if asked.mode == "bsp" else asked.mode,
        exchange="dense",
        **({} if asked.mode == "bsp" else {"server_ranks": asked.server_ranks}),
    )
    sampler = None
    if asked.dealt:
        sampler = gradsieve_hvd.DynamicSampler(range(asked.samples), optimizer, asked.batch)
    for _ in range(5):  # kernels are loaded
        torch.autograd.grad(task.loss_on(model, range(asked.batch)), list(model.parameters()))
    hvd.barrier()
    began = time.perf_counter()
    steps, ends = 0, []
    for epoch in range(asked.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for places in fixed(asked.samples, asked.batch, epoch) if sampler is None else sampler:
            optimizer.zero_grad()
            task.loss_on(model, places).backward()
            optimizer.step()
            steps += 1
        ends.append(round(time.perf_counter() - began, 2))
    if asked.mode != "bsp":
        optimizer.finish()
    hvd.barrier()
    seconds = time.perf_counter() - began
    counted = optimizer.stats()
    waited = getattr(counted, "waiting_seconds", None)
    return {
        "steps": steps,
        "ends": ends,
        "seconds": seconds,
        "waited": waited,
        "reached": task.evaluate(model),
    }


def main() -> None:
    """Train as the command line says; rank 0 prints a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("mode", choices=["bsp", "asp", "ssp", "dssp", "dasp"])
    parser.add_argument("--dealt", action="store_true")
    parser.add_argument("--task", default="charlm-small")
    parser.add_argument("--samples", type=int, default=1536)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--server-ranks", type=json.loads, default=[0])
    asked = parser.parse_args()
    hvd.init()
    told = hvd.allgather_object(train(asked))
    if hvd.rank() == 0:
        row = {name: [each[name] for each in told] for name in ("steps", "waited", "ends")}
        row |= {"seconds_an_epoch": told[0]["seconds"] / asked.epochs, "reached": told[0]["reached"]}
        print(json.dumps({**vars(asked), **row}), flush=True)


if __name__ == "__main__":
    main()
