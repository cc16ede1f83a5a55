"""Ranks of one process that take local steps."""

from __future__ import annotations

from typing import Any

import torch
from thread_ranks import ThreadRank, on_thread_ranks
from torch import nn
from training import loss_of, weights

import gradsieve_hvd


def sparse(density: float = 0.1, **settings: Any) -> Any:
    options = {"group_size": 128, "min_elements": 100, "value_dtype": "int2", "timeout_seconds": 20.0}
    return gradsieve_hvd.Compression.group_topk(density=density, **{**options, **settings})


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def local(ranks: int, work: Any, **options: Any) -> list[Any]:
    given = {"compression": sparse(), "optimizer": adamw, "mode": "local", "local_steps": 3, **options}
    return on_thread_ranks(ranks, work, **given)


def train(rank: ThreadRank, steps: int, first: int = 0) -> list[torch.Tensor]:
    for step in range(first, first + steps):
        rank.optimizer.zero_grad()
        loss_of(rank.model, step, rank.rank).backward()
        rank.optimizer.step()
    return weights(rank.model)


def waiting(rank: ThreadRank) -> list[torch.Tensor]:
    layers = gradsieve_hvd.state_dict(rank.optimizer)["layers"].values()
    return [layer["feedback"]["residual"] for layer in layers]
