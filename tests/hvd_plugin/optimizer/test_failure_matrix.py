"""What goes wrong on one rank is known to all of them in time: on MPI with two and four ranks, and on Gloo.

A rank that is killed is in test_failures, one that joins early in test_joining.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from real_ranks import on_ranks, run_alone
from torch import nn
from training import (
    TIMEOUT,
    Branches,
    assert_equal_on_all_ranks,
    assert_same,
    laplace,
    loss_of,
    perceptron,
    residuals,
    sgd,
    weights,
)

import gradsieve_hvd
from gradsieve.errors import NonFiniteGradient, RankMismatch

INTERLEAVINGS = 40  # by each exchange, in each of the three jobs
EXCHANGES = ("allgather", "ring", "scatter", "lowrank", "dense")


def made(model: nn.Module, **settings: Any) -> Any:
    compression = settings.pop("compression", None) or laplace()
    return gradsieve_hvd.DistributedOptimizer(sgd(model), model.named_parameters(), compression, **settings)


def step(hvd: Any, model: nn.Module, optimizer: Any, number: int, factor: float = 1.0) -> None:
    optimizer.zero_grad()
    (factor * loss_of(model, number, hvd.rank())).backward()
    optimizer.step()


@on_ranks
def test_nan_on_one_rank_is_named_on_all_and_changes_nothing(hvd: Any) -> None:
    for exchange in EXCHANGES:
        model = perceptron()
        optimizer = made(model, exchange=exchange)
        step(hvd, model, optimizer, 0)
        before, waiting = weights(model), residuals(optimizer)
        with pytest.raises(NonFiniteGradient, match=r"'0\.weight' on rank 1"):
            step(hvd, model, optimizer, 1, float("nan") if hvd.rank() == 1 else 1.0)
        assert_same(weights(model), before)
        optimizer.synchronizer.reducer.rollback()  # as the next gradient would
        assert_same([*residuals(optimizer).values()], [*waiting.values()])
        step(hvd, model, optimizer, 2)
        assert_equal_on_all_ranks(hvd, weights(model))


@on_ranks
def test_other_settings_and_other_models_are_told_to_all(hvd: Any) -> None:
    last = hvd.rank() == hvd.size() - 1
    cases = [
        (
            {"compression": laplace(density=0.1 if last else 0.2)},
            20,
            r"density is 0\.2 on rank 0 and 0\.1 on",
        ),
        ({"exchange": "ring" if last else "scatter"}, 20, 'exchange is "scatter" on rank 0 and "ring" on'),
        ({"momentum_correction": last}, 20, "momentum_correction is false on rank 0 and true on"),
        ({}, 21 if last else 20, r"parameters\.weight is .*\(20, 60\).* on rank 0 and .*\(21, 60\).* on"),
    ]
    for settings, outputs, said in cases:
        model = nn.Linear(60, outputs)
        optimizer = made(model, **settings)
        with pytest.raises(RankMismatch, match=f"{said} rank {hvd.size() - 1}"):
            loss_of(model, 0, hvd.rank()).backward()
        del optimizer


@on_ranks
def test_equal_names_in_another_order_are_told_to_all(hvd: Any) -> None:
    """They would be added up by their places: layers made from a set of strings, say."""
    names = ["first", "second"]
    if hvd.rank() == hvd.size() - 1:
        names.reverse()

    def train(model: nn.ModuleDict, optimizer: Any) -> None:
        for _ in range(2):
            sum(layer(torch.ones(1, 60)).sum() for layer in model.values()).backward()
            optimizer.step()

    said = r'order of parameters\.0 is "first.weight" on rank 0 and "second'
    for settings in ({"exchange": "dense"}, {"exchange": "ring"}, {"mode": "local"}):
        model = nn.ModuleDict({name: nn.Linear(60, 60) for name in names})
        optimizer = made(model, **settings)
        with pytest.raises(RankMismatch, match=said):
            train(model, optimizer)
        del optimizer


@on_ranks
def test_optimizers_that_begin_in_another_order_are_told_to_all(hvd: Any) -> None:
    models = [perceptron(), nn.Linear(60, 10)]
    optimizers = [made(model, compression=laplace(timeout_seconds=2.0)) for model in models]
    first = int(hvd.rank() == 1)
    with pytest.raises(RankMismatch, match="begin several optimizers in another order"):
        loss_of(models[first], 0, hvd.rank()).backward()
    del optimizers


@on_ranks
def test_a_second_synchronize_changes_nothing(hvd: Any) -> None:
    for exchange in EXCHANGES:
        model = perceptron()
        optimizer = made(model, exchange=exchange)
        loss_of(model, 0, hvd.rank()).backward()
        optimizer.synchronize()
        once = [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.synchronize()
        assert_same([parameter.grad for parameter in model.parameters()], once)
        optimizer.step()
        assert_equal_on_all_ranks(hvd, weights(model))


@on_ranks
def test_a_step_that_a_loss_scaler_skips_is_skipped_by_all_and_loses_nothing(hvd: Any) -> None:
    for exchange in EXCHANGES:
        model = perceptron()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = made(model, exchange=exchange, compression=laplace(grad_scaler=scaler))
        for number in range(3):
            before, waiting = weights(model), residuals(optimizer)
            optimizer.zero_grad()
            infinite = number == 1 and hvd.rank() == 1
            loss = loss_of(model, number, hvd.rank()) * (float("inf") if infinite else 1.0)
            scaler.scale(loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            if number == 1:
                assert_same(weights(model), before)
                assert_same([*residuals(optimizer).values()], [*waiting.values()])
        assert scaler.get_scale() == 512.0
        assert_equal_on_all_ranks(hvd, weights(model))


@on_ranks
def test_a_rank_may_select_nothing(hvd: Any) -> None:
    for exchange in EXCHANGES:
        model = perceptron()
        optimizer = made(model, exchange=exchange)
        for number in range(4):
            model[0].weight.requires_grad_(hvd.rank() > 0 or number in (0, 3))
            step(hvd, model, optimizer, number, 0.0 if hvd.rank() == 0 and number < 2 else 1.0)
        assert_equal_on_all_ranks(hvd, weights(model))


@on_ranks
def test_gradients_may_become_ready_in_any_order_and_be_missing_anywhere(hvd: Any) -> None:
    for trial, exchange in enumerate(EXCHANGES):
        torch.manual_seed(0)
        model = Branches()
        optimizer = made(model, compression=laplace(density=0.1), exchange=exchange)
        for number in range(INTERLEAVINGS):
            optimizer.zero_grad()
            orders = random.Random(100_000 * trial + 1000 * number + hvd.rank())
            order = orders.sample(range(5), orders.randint(0, 5))
            inputs = torch.full((2, 20), 0.1 * (1 + hvd.rank()), requires_grad=True)
            model(inputs, order).square().mean().backward()
            optimizer.step()
        assert optimizer.synchronizer.reducer.step == INTERLEAVINGS
        assert_equal_on_all_ranks(hvd, weights(model))


@on_ranks
def test_a_bucket_may_be_ready_on_one_rank_only(hvd: Any) -> None:
    for exchange in EXCHANGES:
        model = perceptron()
        optimizer = made(model, exchange=exchange)
        for number in range(3):
            optimizer.zero_grad()
            if hvd.rank() == number % hvd.size():
                loss_of(model, number, hvd.rank()).backward()
            optimizer.step()
        assert_equal_on_all_ranks(hvd, weights(model))
        assert not torch.equal(model[0].weight, perceptron()[0].weight)


CORRUPTION = """
import sys
sys.path.insert(0, {support!r})
import horovod.torch as hvd
hvd.init()
import torch
import gradsieve_hvd
from gradsieve.errors import ExchangeError, PayloadError
from gradsieve_hvd.transport.choose import choose_transport
from training import assert_same, end_together, laplace, loss_of, perceptron, residuals, sgd, weights

class Breaking:
    def __init__(self, transport):
        self.transport, self.rank, self.size, self.breaks = transport, transport.rank, transport.size, False

    def send_receive(self, message, to, source):
        if self.breaks:
            self.breaks, message = False, message.clone()
            message[-1] ^= 1
        return self.transport.send_receive(message, to, source)

transport = Breaking(choose_transport(hvd.global_process_set, timeout=4).transport)
model = perceptron()
optimizer = gradsieve_hvd.DistributedOptimizer(
    sgd(model), model.named_parameters(), laplace(timeout_seconds=8.0), exchange="ring", transport=transport
)
for step in range(2):
    before, waiting = weights(model), residuals(optimizer)
    transport.breaks = step == 1 and hvd.rank() == 1
    optimizer.zero_grad()
    loss_of(model, step, hvd.rank()).backward()
    try:
        optimizer.step()
    except (ExchangeError, PayloadError) as error:
        print(f"rank {{hvd.rank()}} {{type(error).__name__}} in step {{step}}: {{error}}", flush=True)
        assert_same(weights(model), before)
        assert_same([*residuals(optimizer).values()], [*waiting.values()])
        print(f"rank {{hvd.rank()}} is as before", flush=True)
end_together(hvd)
"""


@pytest.mark.parametrize("gloo", [pytest.param(False, id="MPI"), pytest.param(True, id="Gloo")])
def test_a_corrupted_payload_is_refused_and_touches_no_weight(gloo: bool, tmp_path: Path) -> None:
    program = CORRUPTION.format(support=str(Path(__file__).parents[2] / "support"))
    _, output = run_alone(program, 2, tmp_path, gloo=gloo, timeout=2 * TIMEOUT)
    assert "rank 0 PayloadError in step 1: " in output
    assert "checksum" in output
    assert "rank 1 ExchangeError in step 1: " in output
    assert output.count("is as before") == 2
