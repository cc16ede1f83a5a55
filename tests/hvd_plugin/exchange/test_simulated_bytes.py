"""Simulated bytes are those that exchanges send, of gradients whose supports overlap as real ones do."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from sole_tensor import SoleTensor

from gradsieve import Compression
from gradsieve.codec import ValueDtype
from gradsieve.sparse_gradient import SparseGradient
from gradsieve_hvd.exchange import AllgatherExchange, RingExchange, ScatterExchange
from gradsieve_hvd.exchange.messages_sent import PATHS, Messages, Supports, bytes_of, crossing
from gradsieve_hvd.experiments.tasks import TASKS
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks

DENSITY = 0.01
STEPS = 6
EXCHANGES = {"allgather": AllgatherExchange, "ring": RingExchange, "scatter": ScatterExchange}


@cache
def recorded() -> list[SparseGradient]:
    """What 8 ranks select in the last of a few steps of a training, each with a residual of its own."""
    task = TASKS["digits"]()
    model = task.model(seed=0)
    optimizer = task.optimizer(model)
    elements = sum(parameter.numel() for parameter in model.parameters())
    layers = [SoleTensor(Compression.topk(density=DENSITY), elements) for _ in range(8)]
    for step in range(STEPS):
        selected = []
        for rank, layer in enumerate(layers):
            model.zero_grad()
            task.loss(model, step, rank, 0).backward()
            gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
            selected.append(layer.select(gradient, step=step))
            layer.commit()
        mean = torch.stack([each.dense() for each in selected]).mean(0)
        parts = mean.split([parameter.numel() for parameter in model.parameters()])
        for parameter, part in zip(model.parameters(), parts, strict=True):
            parameter.grad = part.view_as(parameter)
        optimizer.step()
    return selected


def fitted(gradients: list[SparseGradient]) -> Supports:
    union = torch.stack([each.dense() != 0 for each in gradients]).any(0).sum()
    return Supports.fitted(gradients[0].elements, gradients[0].count, len(gradients), float(union))


def sent(path: str, gradients: list[SparseGradient], most: int | None, value_dtype: ValueDtype) -> float:
    """Bytes that a rank sends on the average."""

    def work(transport: ThreadTransport) -> int:
        exchange = EXCHANGES[path](value_dtype)
        exchange.exchange(gradients[transport.rank], transport, most)
        before = transport.sent_bytes
        exchange.exchange(gradients[transport.rank], transport, most)  # no counting of entries in this one
        return transport.sent_bytes - before

    return sum(run_ranks(len(gradients), work)) / len(gradients)


@pytest.mark.parametrize("value_dtype", ["float32", "int4"])
@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("path", EXCHANGES)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_with_recorded_supports_they_are_right_within_15_percent(
    ranks: int, path: str, bounded: bool, value_dtype: ValueDtype
) -> None:
    gradients = recorded()[:ranks]
    most = gradients[0].count if bounded else None
    simulated = bytes_of(PATHS[path](fitted(gradients), ranks, most), value_dtype)
    assert simulated == pytest.approx(sent(path, gradients, most, value_dtype), rel=0.15)


def test_recorded_supports_overlap_more_than_independent_ones() -> None:
    supports = fitted(recorded())
    assert supports.hot < 0.5 * supports.elements
    assert supports.union(8) < 0.9 * Supports.independent(supports.elements, supports.entries).union(8)


@pytest.mark.parametrize("union", [100.0, 137.0, 400.0, 795.0])
def test_fitted_supports_have_the_union_that_they_were_fitted_to(union: float) -> None:
    assert Supports.fitted(1e5, 100, 8, union).union(8) == pytest.approx(union)


def test_what_cannot_be_fitted_is_independent() -> None:
    assert Supports.fitted(1000, 100, 8, 1e6).hot == 1000


def test_a_crossing_is_where_one_path_begins_to_send_less() -> None:
    assert crossing(lambda ranks: 100, lambda ranks: 10 * ranks) == 11
    assert crossing(lambda ranks: 100, lambda ranks: 100) is None
    assert crossing(lambda ranks: 1, lambda ranks: ranks) == 2


def test_nothing_selected_is_headers_only() -> None:
    assert bytes_of([Messages(1000, 0, 3)]) == 3 * bytes_of([Messages(1000, 0)])
    assert Supports.independent(1000, 0).union(8) == 0
