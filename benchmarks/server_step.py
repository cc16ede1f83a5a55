"""What a step costs by a parameter server, beside the same step by a collective, in processor time.

``gradsieve run -np 4 -- python benchmarks/server_step.py`` has ranks exchange the gradients of a model of
``--parameters`` elements and update it, in turns, with nothing to compute:

``dense``: an all-reduce of whole gradients, every rank updates all weights. ``bsp, dense``: whole gradients
to the shards, which update their part, and weights back, so that as many bytes travel. ``scatter`` and
``bsp, sparse``: the same with 1 % of the entries, to the ranks that add them up, and sums or changes back.

Processor time is that of all threads of all ranks: also Horovod's in the background, which goes by the time
that a step takes. A line each: medians over rounds, and by how much a server's step costs more.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import horovod.torch as hvd
import torch
from torch.nn import Parameter

import gradsieve_hvd

_TENSORS = 12
_MILLI, _MEGA = 1e3, 1e6
CONTENDERS: Mapping[str, dict[str, Any]] = {
    "dense": {"exchange": "dense"},
    "bsp, dense": {"mode": "bsp", "exchange": "dense"},
    "scatter": {"exchange": "scatter"},
    "bsp, sparse": {"mode": "bsp"},
}
BESIDE = {"bsp, dense": "dense", "bsp, sparse": "scatter"}


class Turn:
    """One contender: a model of its own, and gradients that are the same in each step."""

    def __init__(self, parameters: int, settings: dict[str, Any]) -> None:
        torch.manual_seed(0)
        sizes = [parameters // _TENSORS] * _TENSORS
        self._parameters = [Parameter(torch.randn(size)) for size in sizes]
        generator = torch.Generator().manual_seed(1 + hvd.rank())
        self._gradients = [torch.randn(size, generator=generator) for size in sizes]
        asked = dict(settings)
        if "exchange" not in asked or asked["exchange"] == "scatter":
            asked["compression"] = gradsieve_hvd.Compression.laplace(density=0.01)
        named = [(f"tensor {number}", each) for number, each in enumerate(self._parameters)]
        plain = torch.optim.SGD(self._parameters, lr=1e-3)
        self._optimizer = gradsieve_hvd.DistributedOptimizer(plain, named, **asked)

    def step(self) -> None:
        """Exchange, and update."""
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient.clone()
        self._optimizer.step()

    def end(self) -> None:
        """Leave the server, if there is one."""
        getattr(self._optimizer, "finish", lambda: None)()


def timed(work: Callable[[], None], steps: int) -> tuple[float, float]:
    """Return seconds of processor time, of all ranks, and of time, of one step."""
    hvd.barrier()
    began, used = time.perf_counter(), time.process_time()
    for _ in range(steps):
        work()
    hvd.barrier()
    took = torch.tensor([time.process_time() - used, time.perf_counter() - began], dtype=torch.float64)
    processor, seconds = hvd.allreduce(took, op=hvd.Sum).tolist()
    return processor / steps, seconds / steps / hvd.size()


def main() -> None:
    """Measure, and print the table on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=6_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10)
    asked = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    turns = {name: Turn(asked.parameters, settings) for name, settings in CONTENDERS.items()}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in turns}
    for number in range(asked.rounds + 1):
        for name, turn in turns.items():
            each = timed(turn.step, asked.steps)
            if number:  # the first round compares settings and allocates
                found[name].append(each)
    for turn in turns.values():
        turn.end()
    if hvd.rank():
        return
    print(f"{asked.parameters / _MEGA:g} million parameters, {hvd.size()} ranks")
    for name, rounds in found.items():
        processor, seconds = (statistics.median(each) for each in zip(*rounds, strict=True))
        said = f"{name:12} {_MILLI * processor:7.1f} ms of processor time, {_MILLI * seconds:7.1f} ms a step"
        if name in BESIDE:
            pairs = zip(rounds, found[BESIDE[name]], strict=True)
            more = statistics.median(own[0] / other[0] - 1 for own, other in pairs)
            said += f": {more:+.1%} of processor time beside {BESIDE[name]}"
        print(said)


if __name__ == "__main__":
    main()
