"""Bytes of every path by which ranks may sum their gradients, on gradients of real training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gradsieve import Compression, Decision, LayerCompressor, Refusal
from gradsieve.codec import ValueDtype
from gradsieve_hvd.exchange import (
    AllgatherExchange,
    BucketExchange,
    DenseExchange,
    Exchange,
    LowRankExchange,
    RingExchange,
    ScatterExchange,
)
from gradsieve_hvd.exchange.messages_sent import dense_bytes
from gradsieve_hvd.experiments.tasks import TASKS, Task
from gradsieve_hvd.transport.base import Transport
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks

Row = dict[str, Any]


class Contender(Protocol):
    """One rank's part of a path."""

    def mean(self, gradient: Tensor, step: int, transport: Transport) -> Tensor:
        """Return the mean over ranks (fp32 [N]) of their gradients (fp32 [N]) with what they held back."""
        ...


class SparseContender:
    """Selects the largest entries of the whole gradient, with error feedback, and exchanges them.

    Args:
        exchange: this rank's.
        elements: N.
        density: of the selection.
        bound: how many entries may be applied, in multiples of what is selected; 0 for no bound.
    """

    def __init__(self, exchange: Exchange, elements: int, density: float, bound: int = 0) -> None:
        self._exchange, self._decision = exchange, Decision(density)
        self._layer = LayerCompressor(Compression.topk(density=density), elements)
        self._most = bound * round(density * elements) or None

    def mean(self, gradient: Tensor, step: int, transport: Transport) -> Tensor:
        """See `Contender`; what the exchange rejects goes back into the residual."""
        selected = self._layer.select(gradient, self._decision)
        assert not isinstance(selected, Refusal), f"the gradient of step {step} is not finite"
        result = self._exchange.exchange(selected, transport, self._most)
        self._layer.reclaim(result.rejected)
        self._layer.commit()
        return result.total / transport.size


class BucketContender:
    """Exchanges the whole gradient, and what the last exchange rejected with it.

    Args:
        exchange: this rank's.
    """

    def __init__(self, exchange: BucketExchange) -> None:
        self._exchange, self._residual = exchange, torch.zeros(1)

    def mean(self, gradient: Tensor, step: int, transport: Transport) -> Tensor:  # noqa: ARG002
        """See `Contender`."""
        result = self._exchange.exchange(gradient + self._residual, transport)
        self._residual = torch.zeros(1) if result.rejected is None else result.rejected
        return result.total / transport.size


def paths(
    shapes: Sequence[Sequence[int]], ranks: int, density: float, value_dtype: ValueDtype
) -> dict[str, Callable[[], Contender]]:
    """Return what is measured, by name. At bound 1 a path applies k entries, at P as many as an allgather.

    shapes: of the model's parameters.
    """
    elements = sum(math.prod(shape) for shape in shapes)

    def sparse(make: Callable[[ValueDtype], Exchange], bound: int = 0) -> Callable[[], Contender]:
        return lambda: SparseContender(make(value_dtype), elements, density, bound)

    def bucket(make: Callable[[], BucketExchange]) -> Callable[[], Contender]:
        return lambda: BucketContender(make())

    return {
        "dense": bucket(DenseExchange),
        "fp16": bucket(partial(DenseExchange, "float16")),
        "bf16": bucket(partial(DenseExchange, "bfloat16")),
        "lowrank, rank 1": bucket(partial(LowRankExchange, shapes, 1)),
        "lowrank, rank 4": bucket(partial(LowRankExchange, shapes, 4)),
        "allgather": sparse(AllgatherExchange),
        "ring": sparse(RingExchange),
        "ring, k applied": sparse(RingExchange, 1),
        f"ring, {ranks} k applied": sparse(RingExchange, ranks),
        "scatter, k applied": sparse(ScatterExchange, 1),
        f"scatter, {ranks} k applied": sparse(ScatterExchange, ranks),
    }


def measure(
    task_name: str,
    ranks: int,
    density: float,
    steps: int,
    value_dtype: ValueDtype = "float32",
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Row]:
    """Train by every path for ``steps`` steps and yield what it came to."""
    task = TASKS[task_name]()
    shapes = [parameter.shape for parameter in task.model(seed=0).parameters()]
    for name, make in paths(shapes, ranks, density, value_dtype).items():
        progress(name)
        training = _Training(task, [make() for _ in range(ranks)])
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


class _Training:
    """sent_bytes: of the rank that sent most, of all steps. applied: entries of all totals."""

    def __init__(self, task: Task, contenders: list[Contender]) -> None:
        self._task, self._contenders = task, contenders
        self.model = task.model(seed=0)
        self._optimizer = task.optimizer(self.model)
        self.elements = sum(parameter.numel() for parameter in self.model.parameters())
        self.sent_bytes = self.applied = 0

    def take(self, step: int) -> None:
        """Take one step on all ranks."""
        gradients = [self._gradient(rank, step) for rank in range(len(self._contenders))]

        def work(transport: ThreadTransport) -> tuple[Tensor, int]:
            rank = transport.rank
            return self._contenders[rank].mean(gradients[rank], step, transport), transport.sent_bytes

        results = run_ranks(len(self._contenders), work)
        self.sent_bytes += max(sent for _, sent in results)
        mean = results[0][0]
        self.applied += int(mean.count_nonzero())
        start = 0
        for parameter in self.model.parameters():
            parameter.grad = mean[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        self._optimizer.step()

    def _gradient(self, rank: int, step: int) -> Tensor:
        self.model.zero_grad()
        self._task.loss(self.model, step, rank, 0).backward()
        return torch.cat([_flat(parameter) for parameter in self.model.parameters()])


def _flat(parameter: nn.Parameter) -> Tensor:
    return torch.zeros(parameter.numel()) if parameter.grad is None else parameter.grad.flatten()
