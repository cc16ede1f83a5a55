"""What a training step costs by each path, beside the same step without any exchange.

Run on ranks behind an emulated link::

    gradsieve run -np 4 --link 100mbit -- python benchmarks/step_time.py --kinds alone,allgather,alone#2

Kinds take turns in every round, each with a model of its own, so that all of them see how a machine's speed
changes. A kind is

- ``alone``: forward, backward and update, on all ranks at once, without exchange;
- ``ddp``: DistributedDataParallel over gloo, or NCCL on a GPU; ``horovod``: Horovod's own optimizer, both
  dense;
- ``dropin``: Horovod's optimizer with gradsieve's compression;
- a name of ``gradsieve_hvd.DistributedOptimizer``'s ``exchange=``, perhaps with ``/mpi``, ``/gloo`` or
  ``/horovod``: what carries the messages; else what `choose_transport` chooses.

Behind it may stand ``+int4`` (a type of values), ``!`` (only ``synchronize()`` is timed, on gradients of a
backward pass that is over: what selecting and exchanging take by themselves) and ``#2``: a second one of the
same kind. The distance between two of a kind tells what a difference means.

Printed, per kind: median and least time of a step (means over ranks), processor time of a rank, user and
system, what its interface sent less Horovod's idle chatter, and how long these bytes need at the link's rate.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch

import gradsieve_hvd
from gradsieve_hvd.experiments.tasks import TASKS, Task
from gradsieve_hvd.launcher import counters

_IDLE_SECONDS = 2.0
_BITS, _MILLI, _KILO = 8, 1e3, 1e3


@dataclass
class Measured:
    """What one rank saw of a kind: seconds of each step; processor seconds and bytes of each round's mean
    step.
    """

    seconds: list[float] = field(default_factory=list)
    user: list[float] = field(default_factory=list)
    system: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)


class Contender:
    """One kind's model and optimizer on this rank."""

    def __init__(self, kind: str, task: Task, density: float, device: torch.device) -> None:
        name, _, _ = kind.partition("#")
        self._only_exchange = name.endswith("!")
        name, _, values = name.rstrip("!").partition("+")
        self._task, self._model, self._step = task, task.model(seed=0).to(device), 0
        self._device = device
        plain = task.optimizer(self._model)
        self._forward: torch.nn.Module = self._model
        if name == "ddp":
            self._forward = torch.nn.parallel.DistributedDataParallel(self._model)
        self._optimizer: Any = plain
        if name not in ("alone", "ddp"):
            self._optimizer = _distributed(name, plain, self._model, density, values or "float32")

    def take_step(self) -> float:
        """Train one step and return how many seconds it took."""
        began = time.perf_counter()
        self._optimizer.zero_grad()
        if self._only_exchange:
            return self._exchange()
        self._task.loss(self._forward, self._step, hvd.rank(), 0).backward()
        self._optimizer.step()
        self._computed()
        self._step += 1
        return time.perf_counter() - began

    def _exchange(self) -> float:
        with _without_hooks(self._optimizer.synchronizer):
            self._task.loss(self._forward, self._step, hvd.rank(), 0).backward()
        self._computed()
        hvd.barrier()
        began = time.perf_counter()
        self._optimizer.synchronize()
        self._computed()
        seconds = time.perf_counter() - began
        with self._optimizer.skip_synchronize():
            self._optimizer.step()
        self._step += 1
        return seconds

    def _computed(self) -> None:
        """Wait for what a GPU was asked to do."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _distributed(name: str, plain: Any, model: torch.nn.Module, density: float, values: str) -> Any:
    if name == "horovod":
        return hvd.DistributedOptimizer(plain, model.named_parameters())
    compression = gradsieve_hvd.Compression.laplace(
        density=density, value_dtype=values, check_weights_every=None
    )
    if name == "dropin":
        return hvd.DistributedOptimizer(plain, model.named_parameters(), compression=compression)
    exchange, _, library = name.partition("/")
    return gradsieve_hvd.DistributedOptimizer(
        plain, model.named_parameters(), compression, exchange=exchange, transport=_transport(library)
    )


def _transport(library: str) -> Any:
    if library == "mpi":
        from gradsieve_hvd.transport.mpi import MpiTransport

        return MpiTransport()
    if library == "gloo":
        from gradsieve_hvd.transport.torch_distributed import TorchDistributedTransport

        return TorchDistributedTransport(torch.distributed.new_group(backend="gloo"))
    if library == "horovod":
        from gradsieve_hvd.transport.horovod import HorovodTransport

        return HorovodTransport(hvd.global_process_set)
    return None


def measure(contenders: dict[str, Contender], rounds: int, steps: int, idle: float) -> dict[str, Measured]:
    """Return what this rank measured, by kind; the first round is not counted."""
    measured = {kind: Measured() for kind in contenders}
    for number in range(rounds + 1):
        for kind in contenders:
            hvd.barrier()
            sent, times, began = _sent(), os.times(), time.perf_counter()
            seconds = [contenders[kind].take_step() for _ in range(steps)]
            hvd.barrier()
            took, after = time.perf_counter() - began, os.times()
            if number:
                each = measured[kind]
                each.seconds += seconds
                each.user.append((after.user - times.user) / steps)
                each.system.append((after.system - times.system) / steps)
                each.sent.append((_sent() - sent - idle * took) / steps)
    return measured


def rows(measured: dict[str, Measured]) -> list[dict[str, Any]]:
    """Return the figures of all ranks, by kind; all ranks call it."""
    every: list[dict[str, Measured]] = hvd.allgather_object(measured)
    rate = counters.link_rate()
    made = []
    for kind in measured:
        ranks = [each[kind] for each in every]
        steps = [statistics.mean(step) for step in zip(*(each.seconds for each in ranks), strict=True)]
        sent = statistics.mean(statistics.mean(each.sent) for each in ranks)
        made.append(
            {
                "kind": kind,
                "seconds": statistics.median(steps),
                "least_seconds": min(steps),
                "user_seconds": statistics.mean(statistics.mean(each.user) for each in ranks),
                "system_seconds": statistics.mean(statistics.mean(each.system) for each in ranks),
                "sent_bytes": sent,
                "wire_seconds": sent * _BITS / rate if rate else 0.0,
            }
        )
    return made


def show(made: list[dict[str, Any]]) -> None:
    """Print a table, with what each kind takes beyond computing alone."""
    alone = [row["seconds"] for row in made if row["kind"].startswith("alone")]
    base = statistics.mean(alone) if alone else 0.0
    print(f"{'kind':22}{'ms':>8}{'least':>8}{'- alone':>9}{'wire':>7}{'user':>7}{'sys':>6}{'kB':>9}")
    for row in made:
        beyond = 0.0 if row["kind"].startswith("alone") or "!" in row["kind"] else row["seconds"] - base
        figures = (
            f"{row['kind']:22}{row['seconds'] * _MILLI:8.0f}{row['least_seconds'] * _MILLI:8.0f}"
            f"{beyond * _MILLI:9.0f}{row['wire_seconds'] * _MILLI:7.0f}{row['user_seconds'] * _MILLI:7.0f}"
            f"{row['system_seconds'] * _MILLI:6.0f}{row['sent_bytes'] / _KILO:9.0f}"
        )
        print(figures, flush=True)


def _sent() -> float:
    return counters.interface_bytes().sent if counters.INTERFACE_VARIABLE in os.environ else 0.0


class _without_hooks:  # noqa: N801 - a context manager
    """Backward passes within it are not noticed by a `Synchronizer`."""

    def __init__(self, synchronizer: Any) -> None:
        self._synchronizer = synchronizer

    def __enter__(self) -> None:
        self._synchronizer.gradient_ready = lambda _: None

    def __exit__(self, *error: object) -> None:
        del self._synchronizer.gradient_ready


def _start_group(device: torch.device) -> None:
    """Make the process group of ``torch.distributed`` whose ranks are Horovod's."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    address = hvd.broadcast_object((socket.gethostbyname(socket.gethostname()), port))
    os.environ |= {"MASTER_ADDR": address[0], "MASTER_PORT": str(address[1])}
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, rank=hvd.rank(), world_size=hvd.size())


def main() -> None:
    """Measure the kinds of the command line."""
    parser = argparse.ArgumentParser(description="What a training step costs by each path.")
    parser.add_argument("--kinds", default="alone,dropin,allgather,alone#2,allgather#2")
    parser.add_argument("--task", default="charlm", choices=list(TASKS))
    parser.add_argument("--density", default=0.01, type=float)
    parser.add_argument(
        "--device", default="cpu", type=torch.device, help="cuda: all ranks share the first GPU"
    )
    parser.add_argument("--rounds", default=6, type=int)
    parser.add_argument("--steps", default=4, type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    hvd.init()
    if any(kind.startswith("ddp") or "/gloo" in kind for kind in kinds):
        _start_group(options.device)
    idle = counters.idle_traffic(_IDLE_SECONDS).sent if counters.INTERFACE_VARIABLE in os.environ else 0.0
    task = TASKS[options.task]()
    contenders = {kind: Contender(kind, task, options.density, options.device) for kind in kinds}
    made = rows(measure(contenders, options.rounds, options.steps, idle))
    if hvd.rank() == 0:
        print(f"idle chatter: {idle / _KILO:.0f} kB/s a rank")
        show(made)
        if options.json:
            options.json.write_text(
                json.dumps({"idle_bytes_per_second": idle, "rows": made}, indent=1) + "\n"
            )
    hvd.barrier()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
