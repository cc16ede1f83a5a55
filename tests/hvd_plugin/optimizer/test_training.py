"""Training by gradsieve's own optimizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gloo_group import gloo
from real_ranks import on_ranks
from thread_ranks import ThreadRank, on_thread_ranks
from torch import nn
from training import (
    assert_equal_on_all_ranks,
    assert_same,
    laplace,
    loss_of,
    lossless,
    perceptron,
    sgd,
    weights,
)

import gradsieve_hvd
from gradsieve.errors import NonFiniteGradient
from gradsieve_hvd.transport import choose

EXCHANGES = ("allgather", "ring", "scatter")
STEPS = 6


def train(rank: ThreadRank, steps: int = STEPS) -> list[torch.Tensor]:
    for step in range(steps):
        rank.optimizer.zero_grad()
        loss_of(rank.model, step, rank.rank).backward()
        rank.optimizer.step()
    return weights(rank.model)


def trained_alone(ranks: int) -> list[torch.Tensor]:
    """The weights after training on the mean of the ranks' losses, in one process."""
    model = perceptron()
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        torch.stack([loss_of(model, step, rank) for rank in range(ranks)]).mean().backward()
        optimizer.step()
    return weights(model)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_sending_everything_trains_as_one_process_on_all_data(exchange, ranks):
    results = on_thread_ranks(ranks, train, compression=lossless(), optimizer=sgd, exchange=exchange)
    for result in results:
        assert_same(result, results[0])
    assert_same(results[0], trained_alone(ranks), rtol=1e-4, atol=1e-6)  # sums in another order


@pytest.mark.parametrize(
    ("exchange", "rtol", "atol"), [("dense", 1e-4, 1e-6), ("fp16", 1e-2, 1e-4), ("bf16", 5e-2, 2e-3)]
)
def test_whole_gradients_train_as_one_process_on_all_data(exchange, rtol, atol):
    def last(rank: ThreadRank) -> tuple[list[torch.Tensor], gradsieve_hvd.StepStatistics]:
        return train(rank), gradsieve_hvd.statistics(rank.optimizer)

    results = on_thread_ranks(3, last, optimizer=sgd, exchange=exchange)
    for result, _ in results:
        assert_same(result, results[0][0])
    assert_same(results[0][0], trained_alone(3), rtol=rtol, atol=atol)  # six steps' rounding of that type
    assert results[0][1].payload_bytes == 0
    assert results[0][1].dense_bytes == 4 * 1430


def test_matrices_of_low_rank_train_as_one_process_on_all_data():
    def last(rank: ThreadRank) -> tuple[list[torch.Tensor], gradsieve_hvd.StepStatistics]:
        return train(rank), gradsieve_hvd.statistics(rank.optimizer)

    model = perceptron()
    results = on_thread_ranks(3, last, exchange="lowrank", rank=8, compression=lossless(), optimizer=sgd)
    for result, _ in results:
        assert_same(result, results[0][0])
    # Gradients of 24 samples are all but of rank 8: six steps come close.
    apart = [(one - two).norm() for one, two in zip(results[0][0], trained_alone(3), strict=True)]
    moved = [(one - two).norm() for one, two in zip(weights(model), trained_alone(3), strict=True)]
    assert sum(apart) < 0.3 * sum(moved)
    counted = results[0][1]
    assert counted.dense_bytes == 4 * (30 + 200), "the factors of the second matrix would be larger"
    # The first one's factors of rank 8 in a ring: 2 (P - 1) / P of their bytes, and headers.
    assert 0 < counted.payload_bytes < 1.1 * 4 / 3 * 4 * 8 * (20 + 60)


@pytest.mark.parametrize(("factor", "mean"), [(1.0, 65504 / 2), (2.0, 40000.0)])
def test_dividing_before_the_sum_keeps_fp16_from_overflowing(factor, mean):
    def step(rank: ThreadRank) -> float:
        (40000.0 * rank.model.weight).sum().backward()
        rank.optimizer.synchronize()
        return float(rank.model.weight.grad[0, 0])

    # Of few values no sum travels in fp16.
    results = on_thread_ranks(
        2, step, model=torch.nn.Linear(5000, 1), exchange="fp16", gradient_predivide_factor=factor
    )
    assert results == [mean, mean]


@pytest.mark.parametrize("exchange", [*EXCHANGES, "dense"])
def test_dividing_before_the_sum_changes_no_mean(exchange):
    results = on_thread_ranks(
        3,
        train,
        compression=lossless(),
        optimizer=sgd,
        exchange=exchange,
        gradient_predivide_factor=1.7,
    )
    assert_same(results[0], trained_alone(3), rtol=1e-4, atol=1e-6)


def test_nan_is_named_where_whole_gradients_travel_too():
    def step(rank: ThreadRank) -> None:
        loss = loss_of(rank.model, 0, rank.rank)
        if rank.rank == 1:
            loss = loss + rank.model[0].weight.sum() * float("nan")
        loss.backward()
        with pytest.raises(NonFiniteGradient, match=r"'0\.weight' on rank 1\."):
            rank.optimizer.step()

    on_thread_ranks(2, step, exchange="dense")


@pytest.mark.parametrize("exchange", [*EXCHANGES, "lowrank"])
def test_the_same_seeds_give_the_same_bits(exchange):
    first, second = (on_thread_ranks(3, train, optimizer=sgd, exchange=exchange) for _ in range(2))
    assert_same(first[0], second[0])


def test_the_result_is_an_optimizer_of_the_users_class_with_its_state():
    model = perceptron()
    plain = sgd(model)
    loss_of(model, 0, 0).backward()
    plain.step()

    def look(rank: ThreadRank) -> None:
        assert isinstance(rank.optimizer, torch.optim.SGD)
        torch.optim.lr_scheduler.StepLR(rank.optimizer, 1)
        buffers = [state["momentum_buffer"] for state in rank.optimizer.state.values()]
        assert len(buffers) == 4

    on_thread_ranks(1, look, model=model, optimizer=lambda own: _with_state(own, plain))


def test_a_scheduler_made_before_does_not_keep_the_optimizer_from_synchronizing():
    def scheduled(model: Any) -> Any:
        optimizer = sgd(model)
        model.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        return optimizer

    def take(rank: ThreadRank) -> list[torch.Tensor]:
        train(rank, 1)
        rank.optimizer.param_groups[0]["lr"] = 0.0
        before = weights(rank.model)
        train(rank, 1)
        assert_same(weights(rank.model), before)
        return before

    results = on_thread_ranks(2, take, optimizer=scheduled)
    assert_same(results[0], results[1])


def test_the_users_step_hooks_run_once():
    def take(rank: ThreadRank) -> None:
        rank.optimizer.load_state_dict(rank.optimizer.state_dict())
        seen: list[str] = []
        rank.optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
        rank.optimizer.register_step_post_hook(lambda *_: seen.append("after"))
        train(rank, 1)
        assert seen == ["before", "after"]

    on_thread_ranks(2, take)


def _with_state(model: Any, plain: Any) -> Any:
    optimizer = sgd(model)
    optimizer.load_state_dict(plain.state_dict())
    return optimizer


def test_several_backward_passes_add_up_before_they_are_exchanged():
    def twice(rank: ThreadRank) -> list[torch.Tensor]:
        for part in range(2):
            (loss_of(rank.model, part, rank.rank) / 2).backward()
        rank.optimizer.step()
        return weights(rank.model)

    def both(rank: ThreadRank) -> list[torch.Tensor]:
        ((loss_of(rank.model, 0, rank.rank) + loss_of(rank.model, 1, rank.rank)) / 2).backward()
        rank.optimizer.step()
        return weights(rank.model)

    first = on_thread_ranks(2, twice, compression=lossless(), backward_passes_per_step=2)
    second = on_thread_ranks(2, both, compression=lossless())
    assert_same(first[0], second[0], rtol=1e-5, atol=1e-7)


def test_statistics_count_what_was_sent_and_what_was_not():
    def last(rank: ThreadRank) -> gradsieve_hvd.StepStatistics:
        train(rank, 2)
        return gradsieve_hvd.statistics(rank.optimizer)

    (sent, *_) = on_thread_ranks(2, last)
    assert sent.elements == 1400
    assert sent.dense_bytes == 4 * 30
    assert sent.gradient_bytes == 4 * 1430
    assert 0 < sent.kept < 140
    assert 4 * sent.kept < sent.payload_bytes < 4 * 1400


@on_ranks
def test_digits_train_on_real_ranks_as_well_as_by_the_drop_in(hvd: Any) -> None:
    from gradsieve_hvd.experiments.tasks import TASKS

    task = TASKS["digits"]()

    def accuracy(distribute: Any) -> float:
        torch.manual_seed(0)
        # Narrower than the task's own model: the same steps in a fifth of the time.
        model = nn.Sequential(
            nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
        )
        optimizer = distribute(task.optimizer(model), model.named_parameters(), laplace(density=0.02))
        for step in range(60):
            optimizer.zero_grad()
            task.loss(model, step, hvd.rank(), 0).backward()
            optimizer.step()
        assert_equal_on_all_ranks(hvd, weights(model))
        return task.evaluate(model)

    drop_in = accuracy(lambda opt, named, comp: hvd.DistributedOptimizer(opt, named, compression=comp))
    for exchange in (*EXCHANGES, "lowrank"):
        own = accuracy(
            lambda opt, named, comp, exchange=exchange: gradsieve_hvd.DistributedOptimizer(
                opt, named, comp, exchange=exchange
            )
        )
        assert own > 0.8
        assert own > drop_in - 0.05


@on_ranks
def test_horovod_broadcasts_state_as_ever_while_ranks_begin_differently(hvd: Any) -> None:
    model = perceptron(seed=hvd.rank())
    optimizer = gradsieve_hvd.DistributedOptimizer(sgd(model), model.named_parameters(), laplace())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        hvd.allreduce(torch.ones(3), name="the user's own")
        optimizer.step()
    assert_equal_on_all_ranks(hvd, weights(model))


@on_ranks
def test_two_optimizers_take_turns(hvd: Any) -> None:
    generator, critic = perceptron(seed=1), perceptron(seed=2)
    optimizers = [
        gradsieve_hvd.DistributedOptimizer(
            sgd(model), model.named_parameters(), laplace(), exchange="scatter"
        )
        for model in (generator, critic)
    ]
    for step in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses = [loss_of(model, step, hvd.rank()) for model in (generator, critic)]
        for loss in losses:
            loss.backward()  # both are under way now
        for optimizer in reversed(optimizers):
            optimizer.step()
    assert_equal_on_all_ranks(hvd, [*weights(generator), *weights(critic)])


@on_ranks
def test_ranks_that_have_made_unlike_numbers_of_transports_train_together(hvd: Any) -> None:
    choose._Numbers.next += hvd.rank()  # for other process sets, or before a reset of elastic training
    model = perceptron()
    optimizer = gradsieve_hvd.DistributedOptimizer(sgd(model), model.named_parameters(), laplace())
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.step()
    assert_equal_on_all_ranks(hvd, weights(model))


@on_ranks
def test_torch_distributed_may_carry_the_gradients(hvd: Any) -> None:
    from gradsieve_hvd.transport.torch_distributed import TorchDistributedTransport

    def trained(**settings: Any) -> list[torch.Tensor]:
        model = perceptron()
        optimizer = gradsieve_hvd.DistributedOptimizer(
            sgd(model), model.named_parameters(), laplace(), exchange="ring", **settings
        )
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            optimizer.step()
        return weights(model)

    with gloo(hvd):
        # What travels whole is added up by the libraries, each in an order of its own.
        one, other = trained(transport=TorchDistributedTransport(timeout=60)), trained()
        assert_same(one, other, rtol=1e-6, atol=1e-8)
        hvd.barrier()
