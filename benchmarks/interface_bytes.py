"""What network interfaces send for each path, beside what the simulation says.

Run with 2, 4 or 8 ranks, each behind an interface of its own::

    gradsieve run -np 4 --link none -- python benchmarks/interface_bytes.py

The ranks train the character model for a few steps, so that the entries that they select overlap as in a
training. Then each path exchanges the last selections several times, and the interface's bytes of one
exchange (headers and acknowledgements of TCP included, Horovod's idle chatter apart) stand beside those that
`gradsieve_hvd.exchange.messages_sent` computes from how many entries there are, and how many in all together.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch

from gradsieve import Compression, LayerCompressor
from gradsieve.codec import Refusal
from gradsieve.policies import Decision
from gradsieve.sparse_gradient import SparseGradient
from gradsieve_hvd.exchange import AllgatherExchange, Exchange, RingExchange, ScatterExchange
from gradsieve_hvd.exchange.messages_sent import PATHS, Supports, bytes_of
from gradsieve_hvd.experiments.tasks import TASKS
from gradsieve_hvd.launcher import counters
from gradsieve_hvd.transport.base import Transport
from gradsieve_hvd.transport.choose import choose_transport

_EXCHANGES: dict[str, Callable[[], Exchange]] = {
    "allgather": AllgatherExchange,
    "ring": RingExchange,
    "scatter": ScatterExchange,
}
_IDLE_SECONDS, _KILO = 2.0, 1e3


def recorded(task_name: str, density: float, steps: int) -> SparseGradient:
    """Return what this rank selects in the last of so many steps of a training of all ranks."""
    task = TASKS[task_name]()
    model = task.model(seed=0)
    optimizer = task.optimizer(model)
    parameters = list(model.parameters())
    layer = LayerCompressor(Compression.topk(density=density), sum(p.numel() for p in parameters))
    for step in range(steps):
        optimizer.zero_grad()
        task.loss(model, step, hvd.rank(), 0).backward()
        selected = layer.select(torch.cat([p.grad.flatten() for p in parameters]), Decision(density))
        assert not isinstance(selected, Refusal), f"the gradient of step {step} is not finite"
        layer.commit()
        mean = hvd.allreduce(selected.dense(), name="mean")
        for parameter, part in zip(parameters, mean.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)
        optimizer.step()
    return selected


def overlap(selected: SparseGradient) -> Supports:
    """Return supports that overlap as those of all ranks."""
    chosen = (selected.dense() != 0).to(torch.float32)
    union = int((hvd.allreduce(chosen, op=hvd.Sum, name="union") != 0).sum())
    return Supports.fitted(selected.elements, selected.count, hvd.size(), float(union))


def interface_bytes(
    exchange: Exchange,
    selected: SparseGradient,
    most: int | None,
    transport: Transport,
    times: int,
    idle: float,
) -> float:
    """Return the bytes that an interface sends for one exchange, the mean over ranks."""
    exchange.exchange(selected, transport, most)  # connections; a scatter counts entries
    hvd.barrier()
    sent, began = counters.interface_bytes().sent, time.perf_counter()
    for _ in range(times):
        exchange.exchange(selected, transport, most)
    hvd.barrier()
    own = counters.interface_bytes().sent - sent - idle * (time.perf_counter() - began)
    return float(hvd.allreduce(torch.tensor([own / times], dtype=torch.float64), name="sent"))


def main() -> None:
    """Measure every path, print and write a table."""
    parser = argparse.ArgumentParser(description="Interfaces' bytes beside simulated ones.")
    parser.add_argument("--task", default="charlm", choices=list(TASKS))
    parser.add_argument("--density", default=0.01, type=float)
    parser.add_argument("--steps", default=6, type=int)
    parser.add_argument("--times", default=15, type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    hvd.init()
    transport = choose_transport(hvd.global_process_set).transport
    selected = recorded(options.task, options.density, options.steps)
    supports = overlap(selected)
    idle = counters.idle_traffic(_IDLE_SECONDS).sent
    rows: list[dict[str, Any]] = []
    for name, make in _EXCHANGES.items():
        for most in (None, selected.count):
            if most and name == "allgather":
                continue
            counted = interface_bytes(make(), selected, most, transport, options.times, idle)
            simulated = bytes_of(PATHS[name](supports, hvd.size(), most))
            rows.append(
                {
                    "path": f"{name}, k applied" if most else name,
                    "ranks": hvd.size(),
                    "interface_bytes": counted,
                    "simulated_bytes": simulated,
                }
            )
    if hvd.rank() == 0:
        hot = supports.hot / supports.elements
        print(
            f"{hvd.size()} ranks, {selected.count:,} entries of {selected.elements:,}, from {hot:.0%} of them"
        )
        for row in rows:
            ratio = row["interface_bytes"] / row["simulated_bytes"]
            figures = (
                f"{row['interface_bytes'] / _KILO:9.0f}{row['simulated_bytes'] / _KILO:9.0f}{ratio:7.2f}"
            )
            print(f"{row['path']:20}{figures}", flush=True)
        if options.json:
            options.json.write_text(json.dumps({"hot": hot, "rows": rows}, indent=1) + "\n")
    hvd.barrier()


if __name__ == "__main__":
    main()
