"""Bytes of every path by which ranks may sum their selections, on gradients of real training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradsieve import Compression, LayerCompressor
from gradsieve.codec import ValueDtype
from gradsieve.sparse_gradient import SparseGradient
from gradsieve_hvd.demo.tasks import TASKS, Task
from gradsieve_hvd.exchange import AllgatherExchange, Exchange, Exchanged, RingExchange, ScatterExchange
from gradsieve_hvd.exchange.entries_sent import dense_bytes
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks

Row = dict[str, Any]


@dataclass(frozen=True)
class Path:
    """make: an exchange for one rank. bound: most applied entries, in multiples of k; 0 for no bound."""

    make: Callable[[], Exchange]
    bound: int = 0


def paths(ranks: int, value_dtype: ValueDtype) -> dict[str, Path]:
    """Return what is measured, by name. At bound 1 a path applies k entries, at P as many as an allgather."""
    ring, scatter = partial(RingExchange, value_dtype), partial(ScatterExchange, value_dtype)
    return {
        "allgather": Path(partial(AllgatherExchange, value_dtype)),
        "ring": Path(ring),
        "ring, k applied": Path(ring, 1),
        f"ring, {ranks} k applied": Path(ring, ranks),
        "scatter, k applied": Path(scatter, 1),
        f"scatter, {ranks} k applied": Path(scatter, ranks),
    }


def measure(
    task_name: str,
    ranks: int,
    density: float,
    steps: int,
    value_dtype: ValueDtype = "float32",
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Row]:
    """Train by every path for ``steps`` steps and yield what it came to.

    Each rank selects the largest entries of its whole flat gradient, with error feedback; what the exchange
    rejects goes back into its residual.
    """
    task = TASKS[task_name]()
    for name, path in paths(ranks, value_dtype).items():
        progress(name)
        training = _Training(task, path, ranks, density)
        for step in range(steps):
            training.take(step)
        elements = training.elements
        yield {
            "path": name,
            "task": task_name,
            "ranks": ranks,
            "density": density,
            "steps": steps,
            "values": value_dtype,
            "bytes_per_step": training.sent_bytes / steps,
            "dense_bytes_per_step": dense_bytes(elements, ranks),
            "applied_share": training.applied / steps / elements,
            "result": task.evaluate(training.model),
            "metric": task.metric,
        }


@dataclass
class _Training:
    """sent_bytes: of the rank that sent most, of all steps. applied: entries of all totals."""

    task: Task
    path: Path
    ranks: int
    density: float
    sent_bytes: int = 0
    applied: int = 0
    model: nn.Module = field(init=False)

    def __post_init__(self) -> None:
        self.model = self.task.model(seed=0)
        self._optimizer = self.task.optimizer(self.model)
        self.elements = sum(parameter.numel() for parameter in self.model.parameters())
        config = Compression.topk(density=self.density)
        self._layers = [LayerCompressor(config, self.elements) for _ in range(self.ranks)]
        self._exchanges = [self.path.make() for _ in range(self.ranks)]

    def take(self, step: int) -> None:
        """Take one step on all ranks."""
        selected = [self._select(rank, step) for rank in range(self.ranks)]
        most = self.path.bound * round(self.density * self.elements) or None

        def work(transport: ThreadTransport) -> tuple[Exchanged, int]:
            exchange = self._exchanges[transport.rank]
            return exchange.exchange(selected[transport.rank], transport, most), transport.sent_bytes

        results = run_ranks(self.ranks, work)
        self.sent_bytes += max(sent for _, sent in results)
        total = results[0][0].total
        self.applied += int(total.count_nonzero())
        for layer, (result, _) in zip(self._layers, results, strict=True):
            layer.reclaim(result.rejected)
            layer.commit()
        start = 0
        for parameter in self.model.parameters():
            part = total[start : start + parameter.numel()]
            parameter.grad = (part / self.ranks).view_as(parameter)
            start += parameter.numel()
        self._optimizer.step()

    def _select(self, rank: int, step: int) -> SparseGradient:
        self.model.zero_grad()
        self.task.loss(self.model, step, rank, 0).backward()
        gradient = torch.cat([_flat(parameter) for parameter in self.model.parameters()])
        selected = self._layers[rank].select(gradient, step=step)
        assert selected is not None, f"rank {rank}: the gradient of step {step} is not finite"
        return selected


def _flat(parameter: nn.Parameter) -> Tensor:
    return torch.zeros(parameter.numel()) if parameter.grad is None else parameter.grad.flatten()
