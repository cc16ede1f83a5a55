"""What goes wrong is an error on every rank, in time, and leaves the training as it was."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from real_ranks import run_alone
from thread_ranks import ThreadRank, on_thread_ranks
from torch import nn
from training import assert_same, laplace, loss_of, lossless, residuals, weights

import gradsieve_hvd
from gradsieve.errors import ConfigurationError, ExchangeError, NonFiniteGradient, RankMismatch
from gradsieve_hvd.transport.threads import run_ranks

EXCHANGES = ("allgather", "ring", "scatter", "lowrank")


def step(rank: ThreadRank, number: int = 0, factor: float = 1.0) -> None:
    rank.optimizer.zero_grad()
    (factor * loss_of(rank.model, number, rank.rank)).backward()
    rank.optimizer.step()


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_nan_on_one_rank_is_named_on_all_and_changes_nothing(exchange):
    def train(rank: ThreadRank) -> list[torch.Tensor]:
        step(rank)
        before, waiting = weights(rank.model), residuals(rank.optimizer)
        with pytest.raises(NonFiniteGradient, match=r"'0\.weight' on rank 1"):
            step(rank, 1, float("nan") if rank.rank == 1 else 1.0)
        assert_same(weights(rank.model), before)
        step(rank, 2)
        assert waiting.keys() == residuals(rank.optimizer).keys()
        return weights(rank.model)

    def without(rank: ThreadRank) -> list[torch.Tensor]:
        step(rank)
        step(rank, 2)
        return weights(rank.model)

    results = on_thread_ranks(3, train, exchange=exchange)
    for result in results[1:]:
        assert_same(result, results[0])
    if exchange != "scatter":  # whose blocks remember where the refused step's entries were
        assert_same(results[0], on_thread_ranks(3, without, exchange=exchange)[0])


def test_nan_in_a_dense_gradient_is_named():
    def train(rank: ThreadRank) -> None:
        rank.optimizer.zero_grad()
        loss = loss_of(rank.model, 0, rank.rank)
        if rank.rank == 0:
            loss = loss + rank.model[2].bias.sum() * float("inf")
        loss.backward()
        with pytest.raises(NonFiniteGradient, match=r"'2\.bias' on rank 0"):
            rank.optimizer.step()

    on_thread_ranks(2, train)


def test_with_a_loss_scaler_all_ranks_skip_a_step_together_and_lose_nothing():
    def train(rank: ThreadRank) -> tuple[list[torch.Tensor], float]:
        scaler: torch.amp.GradScaler = rank.optimizer.synchronizer.reducer.settings.grad_scaler
        for number in range(4):
            rank.optimizer.zero_grad()
            infinite = rank.rank == 1 and number == 1
            loss = loss_of(rank.model, number, rank.rank) * (float("inf") if infinite else 1.0)
            before, waiting = weights(rank.model), residuals(rank.optimizer)
            scaler.scale(loss).backward()
            rank.optimizer.synchronize()
            scaler.unscale_(rank.optimizer)
            with rank.optimizer.skip_synchronize():
                scaler.step(rank.optimizer)
            scaler.update()
            if number == 1:
                assert_same(weights(rank.model), before)
                assert_same([*residuals(rank.optimizer).values()], [*waiting.values()])
        return weights(rank.model), scaler.get_scale()

    results = on_thread_ranks(
        2, train, compression=lambda: laplace(grad_scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    )
    assert_same(results[0][0], results[1][0])
    assert [scale for _, scale in results] == [512.0, 512.0]


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_rank_that_stops_is_an_exchange_error_and_residuals_are_as_before(exchange):
    def train(rank: ThreadRank) -> None:
        step(rank)
        if rank.rank == 0:
            return
        waiting = residuals(rank.optimizer)
        with pytest.raises(ExchangeError):
            step(rank, 1)
        for name, residual in residuals(rank.optimizer).items():
            assert torch.equal(residual, waiting[name])
        with pytest.raises(ExchangeError, match="before this one"):
            step(rank, 2)

    on_thread_ranks(3, train, exchange=exchange, timeout=1.0, compression=laplace(timeout_seconds=2.0))


def test_ranks_with_other_settings_are_told_which():
    def train(transport) -> str:
        torch.manual_seed(0)
        model = nn.Linear(60, 20)
        optimizer = gradsieve_hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            model.named_parameters(),
            laplace(density=0.1 if transport.rank else 0.2),
            transport=transport,
        )
        with pytest.raises(RankMismatch) as error:
            model(torch.ones(1, 60)).sum().backward()
        del optimizer
        return str(error.value)

    for said in run_ranks(2, train, 10.0):
        assert "density is 0.2 on rank 0 and 0.1 on rank 1" in said


def test_ranks_with_other_models_are_told_which():
    def train(transport) -> str:
        model = nn.Linear(60, 20 + transport.rank)
        optimizer = gradsieve_hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            model.named_parameters(),
            laplace(),
            transport=transport,
        )
        with pytest.raises(RankMismatch) as error:
            model(torch.ones(1, 60)).sum().backward()
        del optimizer
        return str(error.value)

    for said in run_ranks(2, train, 10.0):
        assert "weight" in said


def test_weights_that_drift_apart_are_found():
    def drift(rank: ThreadRank) -> None:
        for number in range(12):
            if number == 5 and rank.rank == 2:
                with torch.no_grad():
                    rank.model[0].weight[0, 0] += 1.0
            step(rank, number)

    def train(rank: ThreadRank) -> None:
        with pytest.raises(RankMismatch, match=r"'0\.weight' on rank 2"):
            drift(rank)

    on_thread_ranks(3, train, compression=laplace(check_weights_every=4))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"exchange": "pigeon"}, "'allgather', 'ring', 'scatter'"),
        ({"op": "product"}, "averaged or summed"),
        ({"groups": 0}, "lists of parameters"),
        ({"groups": [[torch.zeros(3)]]}, "not a parameter of the optimizer"),
        ({"gradient_predivide_factor": 0}, "positive number"),
        ({"gradient_predivide_factor": 2.0, "op": "sum"}, "op=Sum divides nothing"),
        ({"rank": 2}, "exchange='lowrank'"),
        ({"exchange": "lowrank", "rank": 9}, "1 to 8"),
        ({"compression": "laplace"}, "expected one of gradsieve_hvd.Compression"),
        ({"backward_passes_per_step": 0}, "integer of at least 1"),
        ({"backward_passes_per_step": 1.5}, "integer of at least 1"),
    ],
)
def test_unknown_settings_are_refused(settings, complaint):
    model = nn.Linear(3, 3)
    arguments = {"compression": lossless(), "transport": object(), **settings}
    with contextlib.suppress(ModuleNotFoundError), pytest.raises(ConfigurationError, match=complaint):
        gradsieve_hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **arguments
        )


def test_a_distributed_optimizer_is_not_distributed_again():
    def twice(rank: ThreadRank) -> None:
        with pytest.raises(ConfigurationError, match="distributed already"):
            gradsieve_hvd.DistributedOptimizer(
                rank.optimizer, rank.model.named_parameters(), lossless(), transport=rank.transport
            )
        with pytest.raises(ConfigurationError, match="integer of at least 1"):
            rank.optimizer.set_backward_passes_per_step(0)

    on_thread_ranks(1, twice)


@pytest.mark.parametrize("mode", ["synchronous", "local", "dasp"])
def test_an_optimizer_that_steps_with_a_closure_is_refused_when_it_is_made(mode):
    model = nn.Linear(3, 3)
    with pytest.raises(ConfigurationError, match="LBFGS steps with a closure"):
        gradsieve_hvd.DistributedOptimizer(
            torch.optim.LBFGS(model.parameters()),
            model.named_parameters(),
            transport=object(),
            mode=mode,
        )


def test_parameters_without_names_are_refused():
    model = nn.Linear(3, 3)
    with pytest.raises(ConfigurationError, match=r"1 of the optimizer's parameters have no name"):
        gradsieve_hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            [("weight", model.weight)],
            lossless(),
            transport=object(),
        )


DEATH = """
import os, sys
sys.path.insert(0, {support!r})
import horovod.torch as hvd
import gradsieve_hvd
from training import laplace, loss_of, perceptron, sgd
hvd.init()
model = perceptron()
optimizer = gradsieve_hvd.DistributedOptimizer(
    sgd(model), model.named_parameters(), laplace(timeout_seconds=50.0), exchange="{exchange}"
)
for step in range(5):
    optimizer.zero_grad()
    loss_of(model, step, hvd.rank()).backward()
    if step == 3 and hvd.rank() == 1:
        os._exit(7)
    optimizer.step()
print("went on")
"""


@pytest.mark.parametrize("gloo", [False, True], ids=["mpi", "gloo"])
def test_a_process_that_dies_ends_the_job_in_time(gloo, tmp_path):
    program = DEATH.format(support=str(Path(__file__).parents[2] / "support"), exchange="ring")
    status, output = run_alone(program, 2, tmp_path, gloo=gloo, timeout=60)
    assert status != 0, output
    assert "went on" not in output
    assert "time limit" not in output, output
    assert "gradsieve run: rank 1 exited with status 7" in output
