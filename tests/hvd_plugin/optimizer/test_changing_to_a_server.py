"""A training goes on with a parameter server, and without one again; nothing is lost on the way."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from local_ranks import adamw, train
from real_ranks import on_ranks
from thread_ranks import ThreadRank, on_thread_ranks
from torch import nn
from training import (
    Weights,
    assert_equal_on_all_ranks,
    assert_same,
    laplace,
    loss_of,
    lossless,
    perceptron,
    random_gradients,
    residuals,
    steps_of,
    weights,
)
from training import train as train_real

import gradsieve_hvd
from gradsieve.errors import ConfigurationError, NonFiniteGradient, RankMismatch
from gradsieve_hvd.transport.base import Transport

SERVED = ("asp", "ssp", "dssp", "dasp")


def auto(ranks: int, work: Any, **options: Any) -> list[Any]:
    given = {"compression": laplace(), "optimizer": adamw, "mode": "auto", "local_steps": 3, **options}
    return on_thread_ranks(ranks, work, **{"parameter_server": True, **given})


@settings(max_examples=12, deadline=None)
@given(
    ranks=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 1000),
    parts=st.lists(
        st.tuples(st.sampled_from(["synchronous", "asp", "ssp", "dssp"]), st.integers(0, 4)),
        min_size=1,
        max_size=4,
    ),
)
def test_all_that_was_given_was_applied_or_waits(ranks, seed, parts):
    def work(rank: ThreadRank) -> Any:
        given = [torch.zeros_like(each) for each in rank.model.tensors]
        for number, (mode, steps) in enumerate([*parts, ("synchronous", 0)]):
            rank.optimizer.change_mode(mode)
            gradients = random_gradients(steps, seed + number, rank.rank)
            for each in gradients:
                for total, gradient in zip(given, each, strict=True):
                    total.add_(gradient)
            steps_of(rank.optimizer, rank.model, gradients)
        waits = residuals(rank.optimizer)
        left = [
            waits.get(f"tensors.{at}", torch.zeros(each.numel())).view(-1) for at, each in enumerate(given)
        ]
        return given, [-each.detach() for each in rank.model.tensors], left

    # Sums are divided by the ranks; with this rate that leaves whole numbers.
    rate = float(ranks)
    results = auto(
        ranks, work, model=Weights(), optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=rate)
    )
    for tensor, applied in enumerate(results[0][1]):
        assert all(torch.equal(applied, other[1][tensor]) for other in results)
        everything = sum(result[0][tensor].view(-1) for result in results)
        assert torch.equal(applied.view(-1) + sum(result[2][tensor] for result in results), everything)


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 1000),
    parts=st.lists(
        st.tuples(st.sampled_from(["synchronous", "local", *SERVED]), st.integers(1, 3)), max_size=4
    ),
    kind=st.sampled_from(["momentum", "adam"]),
)
def test_momentum_goes_on_as_in_one_mode_whoever_applies_it(seed, parts, kind):
    """The gradients of one rank do not depend on its weights here."""

    def made(model: nn.Module) -> torch.optim.Optimizer:
        if kind == "adam":
            return torch.optim.Adam(model.parameters(), lr=0.01)
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def work(rank: ThreadRank) -> Any:
        plain_model = copy.deepcopy(rank.model)
        plain = made(plain_model)
        for number, (mode, steps) in enumerate([*parts, ("dasp", 1), ("synchronous", 1), ("local", 1)]):
            rank.optimizer.change_mode(mode)
            gradients = random_gradients(steps, seed + number)
            steps_of(rank.optimizer, rank.model, gradients)
            steps_of(plain, plain_model, gradients)
        return rank.optimizer.state_dict()["state"], plain.state_dict()["state"]

    ours, plain = auto(1, work, model=Weights(), compression=lossless(), optimizer=made)[0]
    assert ours.keys() == plain.keys()
    for number, fields in plain.items():
        for field, value in fields.items():
            torch.testing.assert_close(ours[number][field], value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", SERVED)
def test_afterwards_all_ranks_have_one_state_and_train_alike(mode):
    def work(rank: ThreadRank) -> Any:
        train(rank, 2)
        rank.optimizer.change_mode(mode)
        assert rank.optimizer.mode == mode
        train(rank, 4, first=2)
        rank.optimizer.change_mode("synchronous")
        after, state = weights(rank.model), copy.deepcopy(rank.optimizer.state_dict()["state"])
        return after, state, train(rank, 3, first=6)

    results = auto(3, work)
    for after, state, end in results[1:]:
        assert_same(after, results[0][0])
        assert_same(end, results[0][2])
        for number, fields in state.items():
            for field, value in fields.items():
                assert torch.equal(value, results[0][1][number][field])
    assert float(results[0][1][0]["step"]) > 2, "the shards' steps are in the state"


def test_ranks_that_take_different_numbers_of_steps_meet_again():
    def work(rank: ThreadRank) -> Any:
        rank.optimizer.change_mode("asp")
        train(rank, 2 + 3 * rank.rank)
        rank.optimizer.change_mode("synchronous")
        before = rank.optimizer.stats().step
        return train(rank, 2, first=8), before, rank.optimizer.mode_changes.steps

    results = auto(2, work)
    assert_same(results[0][0], results[1][0])
    assert [result[2] for result in results] == [5 + 2] * 2, "steps count on from those of the fastest"


def test_a_change_from_one_server_mode_to_another_goes_by_common_weights():
    def work(rank: ThreadRank) -> Any:
        for first, mode in enumerate([*SERVED, *SERVED, "local", "dasp", "synchronous"]):
            rank.optimizer.change_mode(mode)
            train(rank, 2, first=2 * first)
        return weights(rank.model), rank.optimizer.mode

    results = auto(2, work)
    assert_same(results[0][0], results[1][0])
    assert [result[1] for result in results] == ["synchronous"] * 2


def through_modes(rank: ThreadRank) -> list[torch.Tensor]:
    for first, mode in enumerate(["asp", "synchronous", "dasp", "local", "ssp", "synchronous"]):
        rank.optimizer.change_mode(mode)
        train(rank, 3, first=3 * first)
    return weights(rank.model)


@pytest.mark.parametrize("name", ["Adagrad", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "Adadelta"])
def test_whatever_an_optimizer_keeps_comes_back(name):
    """Counts of steps as tensors, as numbers, state from before the first step."""
    made = getattr(torch.optim, name)
    results = auto(2, through_modes, optimizer=lambda model: made(model.parameters(), lr=0.01))
    assert_same(results[0], results[1])


@pytest.mark.parametrize("exchange", ["ring", "scatter", "auto", "dense", "fp16"])
def test_gradients_may_travel_any_way_in_the_other_modes(exchange):
    results = auto(3, through_modes, exchange=exchange)
    for result in results[1:]:
        assert_same(result, results[0])


def test_layers_freeze_and_thaw_on_the_way():
    def work(rank: ThreadRank) -> Any:
        layer = next(iter(rank.model.parameters()))
        held = []
        for first, (mode, frozen) in enumerate(
            [("asp", True), ("dasp", False), ("synchronous", True), ("ssp", True), ("synchronous", False)]
        ):
            layer.requires_grad_(not frozen)
            rank.optimizer.change_mode(mode)
            before = layer.detach().clone()
            train(rank, 2, first=2 * first)
            held.append(torch.equal(before, layer))
        return held, weights(rank.model)

    results = auto(2, work, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    assert results[0][0] == results[1][0] == [True, False, True, True, False]
    assert_same(results[0][1], results[1][1])


def test_steps_without_gradients_change_nothing():
    def work(rank: ThreadRank) -> Any:
        before = weights(rank.model)
        rank.optimizer.change_mode("asp")
        for _ in range(3):
            rank.optimizer.zero_grad()
            rank.optimizer.step()
        rank.optimizer.change_mode("synchronous")
        assert_same(weights(rank.model), before)

    auto(2, work)


def test_a_training_evaluates_and_saves_at_weights_that_all_have_and_goes_on():
    def work(rank: ThreadRank) -> Any:
        rank.optimizer.change_mode("dasp")
        saved = []
        for first in (0, 3, 6):
            train(rank, 3, first=first)
            with pytest.raises(ConfigurationError, match="within `with optimizer.consistent"):
                rank.optimizer.state_dict()
            with pytest.raises(ConfigurationError, match="within `with optimizer.consistent"):
                gradsieve_hvd.state_dict(rank.optimizer)
            with rank.optimizer.consistent():
                saved.append((weights(rank.model), rank.optimizer.state_dict()["state"]))
                gradsieve_hvd.state_dict(rank.optimizer)
            assert rank.optimizer.mode == "dasp"
        rank.optimizer.join()
        return saved, weights(rank.model)

    results = auto(2, work)
    for one, other in zip(results[0][0], results[1][0], strict=True):
        assert_same(one[0], other[0])
        assert one[1].keys() == other[1].keys() != set()
    assert_same(results[0][1], results[1][1])


def test_a_saved_training_goes_on_in_its_mode():
    saved: dict[int, Any] = {}

    def first(rank: ThreadRank) -> Any:
        train(rank, 2)
        rank.optimizer.change_mode("ssp")
        train(rank, 3, first=2)
        with rank.optimizer.consistent():
            saved[rank.rank] = copy.deepcopy(
                (
                    rank.model.state_dict(),
                    rank.optimizer.state_dict(),
                    gradsieve_hvd.state_dict(rank.optimizer),
                )
            )

    def second(rank: ThreadRank) -> Any:
        model, optimizer, compressors = saved[rank.rank]
        rank.model.load_state_dict(model)
        rank.optimizer.load_state_dict(optimizer)
        gradsieve_hvd.load_state_dict(rank.optimizer, compressors)
        assert rank.optimizer.mode == "ssp"
        train(rank, 2, first=5)
        rank.optimizer.change_mode("synchronous")
        return weights(rank.model)

    auto(2, first)
    results = auto(2, second)
    assert_same(results[0], results[1])
    with pytest.raises(ConfigurationError, match="parameter_server=True"):
        auto(2, second, parameter_server=False)


def test_a_scheduler_and_added_parameters_reach_the_shards():
    def work(rank: ThreadRank) -> Any:
        scheduler = torch.optim.lr_scheduler.StepLR(rank.optimizer, 1, gamma=0.5)
        rank.optimizer.change_mode("asp")
        before = weights(rank.model)
        for step in range(3):
            train(rank, 1, first=step)
            scheduler.step()
        extra = nn.Parameter(torch.ones(5))
        rank.optimizer.add_param_group({"params": [extra]})
        extra.grad = torch.ones(5)
        loss_of(rank.model, 9, rank.rank).backward()
        rank.optimizer.step()
        rank.optimizer.change_mode("synchronous")
        return before, weights(rank.model), extra.detach().clone(), rank.optimizer.param_groups[0]["lr"]

    results = auto(2, work)
    assert results[0][3] == pytest.approx(results[1][3])
    assert_same(results[0][1], results[1][1])
    assert torch.equal(results[0][2], results[1][2])
    assert not torch.equal(results[0][2], torch.ones(5)), "the server has updated it"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"parameter_server": False}, "it needs parameter_server=True"),
        ({"exchange": "lowrank"}, "exchange"),
        ({"backward_passes_per_step": 2}, "backward_passes_per_step"),
        ({"op": "sum"}, "does not go with op"),
        ({"compression": laplace(clip_norm=1.0)}, "compression.clip_norm"),
    ],
)
def test_what_it_does_not_do_is_refused_on_all_ranks_and_nothing_changes(options, why):
    def work(rank: ThreadRank) -> Any:
        with pytest.raises(ConfigurationError, match=why):
            rank.optimizer.change_mode("dasp")
        assert not set(SERVED) & set(rank.optimizer.modes)
        train(rank, 2)
        return rank.optimizer.mode

    assert auto(2, work, **options) == ["synchronous"] * 2


def test_a_transport_without_letters_is_refused_at_once():
    class Collectives:
        """Of another transport, its collectives alone."""

        def __init__(self, of: Transport) -> None:
            self.rank, self.size, self.send_receive = of.rank, of.size, of.send_receive

    def work(rank: ThreadRank) -> Any:
        with pytest.raises(ConfigurationError, match="carries collectives only"):
            gradsieve_hvd.DistributedOptimizer(
                adamw(rank.model),
                rank.model.named_parameters(),
                laplace(),
                transport=Collectives(rank.transport),
                mode="auto",
                parameter_server=True,
            )

    auto(2, work)


@pytest.mark.parametrize("chosen", [[], [5], 0])
def test_server_ranks_that_are_none_are_refused(chosen):
    with pytest.raises(ConfigurationError, match="server_ranks"):
        auto(2, lambda rank: None, server_ranks=chosen)


@pytest.mark.parametrize("asked", [{"server_ranks": [0]}, {"equal_batches": True}])
def test_what_is_for_a_server_is_refused_without_one(asked):
    with pytest.raises(ConfigurationError, match="without parameter_server=True"):
        auto(2, lambda rank: None, parameter_server=False, **asked)


def test_ranks_that_want_different_modes_keep_training_in_the_present_one():
    def work(rank: ThreadRank) -> Any:
        rank.optimizer.change_mode("asp")
        train(rank, 2)
        with pytest.raises(RankMismatch, match="differ in mode"):
            rank.optimizer.change_mode("dasp" if rank.rank else "synchronous")
        train(rank, 2, first=2)
        rank.optimizer.change_mode("synchronous")
        return weights(rank.model)

    results = auto(2, work)
    assert_same(results[0], results[1])


def with_nan(rank: ThreadRank) -> None:
    """Train until rank 1's gradients end it."""
    for step in range(2, 1000):
        rank.optimizer.zero_grad()
        loss = loss_of(rank.model, step, rank.rank)
        (loss * float("nan") if rank.rank == 1 and step > 2 else loss).backward()
        rank.optimizer.step()


def test_ranks_that_stop_at_different_places_are_told_so():
    def work(rank: ThreadRank) -> Any:
        rank.optimizer.change_mode("asp")
        train(rank, 2)
        with pytest.raises(RankMismatch, match=r"rank 0: join\(\), rank 1: change_mode\(\)"):
            rank.optimizer.change_mode("local") if rank.rank else rank.optimizer.join()

    auto(2, work)


@pytest.mark.parametrize("mode", ["asp", "dasp"])
def test_nan_on_one_rank_ends_the_training_on_all(mode):
    def work(rank: ThreadRank) -> Any:
        train(rank, 2)
        rank.optimizer.change_mode(mode)
        with pytest.raises(NonFiniteGradient, match="on rank 1"):
            with_nan(rank)
        return all(bool(torch.isfinite(each).all()) for each in weights(rank.model))

    assert auto(2, work) == [True, True]


def test_shards_may_be_on_some_ranks_only():
    def work(rank: ThreadRank) -> Any:
        rank.optimizer.change_mode("ssp")
        train(rank, 3)
        rank.optimizer.change_mode("synchronous")
        return train(rank, 1, first=3)

    results = auto(3, work, server_ranks=[1])
    for result in results[1:]:
        assert_same(result, results[0])


@on_ranks
def test_real_ranks_change_to_servers_and_back(hvd):
    model = perceptron()

    def made() -> Any:
        return gradsieve_hvd.DistributedOptimizer(
            torch.optim.AdamW(model.parameters(), lr=0.01),
            model.named_parameters(),
            laplace(),
            mode="auto",
            parameter_server=True,
        )

    if hvd.gloo_built() and not hvd.mpi_enabled():
        with pytest.raises(ConfigurationError, match="carries collectives only"):
            made()
        return
    optimizer = made()
    for first, mode in enumerate(["asp", "synchronous", "dasp", "ssp", "dssp", "local", "asp", "dasp"]):
        optimizer.change_mode(mode)
        train_real(hvd, model, optimizer, 3 + hvd.rank() * (mode in SERVED), first=10 * first)
        with optimizer.consistent():
            assert_equal_on_all_ranks(hvd, weights(model))
    optimizer.join()
    assert_equal_on_all_ranks(hvd, weights(model))


def test_after_steps_apart_all_ranks_go_on_by_rank_0s_schedule():
    """Each has taken as many steps of its schedule as it made; with other rates their weights would part."""

    def work(rank: ThreadRank) -> Any:
        rates = torch.optim.lr_scheduler.CosineAnnealingLR(rank.optimizer, 40)

        def steps(number: int) -> None:
            steps_of(rank.optimizer, rank.model, random_gradients(number, 3, rank.rank))
            for _ in range(number):
                rates.step()

        steps(2)
        rank.optimizer.change_mode("asp")
        steps(5 + 3 * rank.rank)
        rank.optimizer.change_mode("synchronous")
        for _ in range(4):
            steps(1)
        together = [tensor.detach().clone() for tensor in rank.model.tensors]
        if rank.rank == 0:
            steps(1)
        rank.optimizer.join()  # a rank that has joined is told, too
        return together, rates.last_epoch

    results = auto(2, work, model=Weights(), compression=lossless())
    assert [epochs for _, epochs in results] == [12, 14]
    for mine, others in zip(*(tensors for tensors, _ in results), strict=True):
        assert torch.equal(mine, others)


def test_after_as_many_steps_on_all_ranks_no_rank_is_told_of_rates():
    def work(rank: ThreadRank) -> Any:
        rank.optimizer.change_mode("asp")
        steps_of(rank.optimizer, rank.model, random_gradients(3, 3, rank.rank))
        rank.optimizer.change_mode("synchronous")
        return rank.optimizer.synchronizer.hyperparameters

    assert auto(2, work, model=Weights(), compression=lossless()) == [None, None]
