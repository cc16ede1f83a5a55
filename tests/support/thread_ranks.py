"""Ranks that are threads of the test's own process, with a model and an optimizer each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from training import laplace, perceptron

import gradsieve_hvd
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks

SECONDS = 20.0  # that an exchange may take: a hang is a failure


@dataclass
class ThreadRank:
    """rank, size: as Horovod says. model, optimizer: this rank's own."""

    rank: int
    size: int
    model: nn.Module
    optimizer: Any
    transport: ThreadTransport

    def gradients(self) -> list[Tensor | None]:
        return [None if p.grad is None else p.grad.clone() for p in self.model.parameters()]


def plain_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def on_thread_ranks(
    size: int,
    work: Callable[[ThreadRank], Any],
    *,
    model: nn.Module | None = None,
    compression: Any = None,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = plain_sgd,
    timeout: float = SECONDS,
    **settings: Any,
) -> list[Any]:
    """Run ``work`` on every rank, each with a copy of the model; return what came of it, by rank.

    compression: for all ranks, or a function that makes one for each.
    """
    original = perceptron() if model is None else model
    default = laplace(timeout_seconds=timeout) if compression is None else compression

    def run(transport: ThreadTransport) -> Any:
        own, used = copy.deepcopy(original), default() if callable(default) else default
        distributed = gradsieve_hvd.DistributedOptimizer(
            optimizer(own), own.named_parameters(), used, transport=transport, **settings
        )
        return work(ThreadRank(transport.rank, size, own, distributed, transport))

    return run_ranks(size, run, timeout)
