"""A training goes on in another mode: nothing is lost on the way, and all ranks change or none."""

from __future__ import annotations

import copy
import math
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from local_ranks import adamw, train
from thread_ranks import ThreadRank, on_thread_ranks
from torch import nn
from torch.nn import functional as F
from training import (
    Weights,
    assert_same,
    laplace,
    loss_of,
    lossless,
    perceptron,
    random_gradients,
    sgd,
    steps_of,
    weights,
)

import gradsieve_hvd
from gradsieve.errors import ConfigurationError, NonFiniteGradient, RankMismatch


def auto(ranks: int, work: Any, **options: Any) -> list[Any]:
    given = {"compression": laplace(), "optimizer": adamw, "mode": "auto", "local_steps": 3, **options}
    return on_thread_ranks(ranks, work, **given)


@settings(max_examples=15, deadline=None)
@given(
    ranks=st.integers(1, 3),
    seed=st.integers(0, 1000),
    parts=st.lists(
        st.tuples(st.sampled_from(["synchronous", "local"]), st.integers(0, 4)), min_size=1, max_size=5
    ),
)
def test_all_that_was_given_was_applied_or_waits_or_was_forgotten_when_local_steps_ended(ranks, seed, parts):
    def work(rank: ThreadRank) -> Any:
        given = [torch.zeros_like(each) for each in rank.model.tensors]
        left, norms = [torch.zeros(each.numel()) for each in given], [0.0]
        for number, (mode, steps) in enumerate([*parts, ("synchronous", 0)]):
            with rank.optimizer.consistent():
                waits = gradsieve_hvd.state_dict(rank.optimizer)["local"].get("layers", {})
            if mode == "synchronous":
                # Here differences of weights are gradients times the rate, which is the number of ranks.
                norms.append(add(left, waits, 1.0 / rank.size))
            rank.optimizer.change_mode(mode)
            gradients = random_gradients(steps, seed + number, rank.rank)
            for each in gradients:
                for total, gradient in zip(given, each, strict=True):
                    total.add_(gradient)
            steps_of(rank.optimizer, rank.model, gradients)
        assert rank.optimizer.mode_changes.discarded == pytest.approx(rank.size * math.hypot(*norms))
        add(left, gradsieve_hvd.state_dict(rank.optimizer)["layers"], 1.0)
        return given, [-each.detach() for each in rank.model.tensors], left

    results = auto(
        ranks,
        work,
        model=Weights(),
        # Both modes divide sums by the ranks; with this rate that leaves whole numbers.
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=float(ranks)),
        residual_decay=1.0,
    )
    for tensor, applied in enumerate(results[0][1]):
        assert all(torch.equal(applied, other[1][tensor]) for other in results)
        everything = sum(result[0][tensor].view(-1) for result in results)
        left = sum(result[2][tensor] for result in results)
        torch.testing.assert_close(applied.view(-1) + left, everything, rtol=1e-6, atol=1e-3)


def add(totals: list[torch.Tensor], layers: dict[str, Any], factor: float) -> float:
    """Add residuals times a factor; return the norm of what was added."""
    norms = [0.0]
    for at, total in enumerate(totals):
        if f"tensors.{at}" in layers:
            waits = layers[f"tensors.{at}"]["feedback"]["residual"] * factor
            total.add_(waits)
            norms.append(float(waits.norm()))
    return math.hypot(*norms)


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 1000),
    parts=st.lists(st.tuples(st.sampled_from(["synchronous", "local"]), st.integers(1, 4)), max_size=4),
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
        for number, (mode, steps) in enumerate([*parts, ("synchronous", 1), ("local", 1)]):
            rank.optimizer.change_mode(mode)
            gradients = random_gradients(steps, seed + number)
            steps_of(rank.optimizer, rank.model, gradients)
            steps_of(plain, plain_model, gradients)
        return rank.optimizer.state_dict()["state"], plain.state_dict()["state"]

    options = {"model": Weights(), "compression": lossless(), "optimizer": made}
    ours, plain = auto(1, work, **options)[0]
    assert ours.keys() == plain.keys()
    for number, fields in plain.items():
        for field, value in fields.items():
            torch.testing.assert_close(ours[number][field], value, rtol=1e-4, atol=1e-4)


def test_after_local_steps_all_ranks_have_one_state_of_the_optimizer_and_train_alike():
    def work(rank: ThreadRank) -> Any:
        train(rank, 2)
        rank.optimizer.change_mode("local")
        assert rank.optimizer.mode == "local"
        train(rank, 4, first=2)
        within = weights(rank.model)
        rank.optimizer.change_mode("synchronous")
        state = copy.deepcopy(rank.optimizer.state_dict()["state"])
        after = weights(rank.model)
        return within, after, state, train(rank, 3, first=6)

    results = auto(3, work)
    for within, after, state, end in results[1:]:
        assert not torch.equal(within[0], results[0][0][0]), "a round of local steps was under way"
        assert_same(after, results[0][1])
        assert_same(end, results[0][3])
        for number, fields in state.items():
            for field, value in fields.items():
                assert torch.equal(value, results[0][2][number][field])


def there_and_back(rank: ThreadRank) -> list[torch.Tensor]:
    rank.model[2].bias.requires_grad_(False)
    train(rank, 2)
    rank.optimizer.change_mode("local")
    train(rank, 2, first=2)
    rank.model[2].bias.requires_grad_(True)
    train(rank, 2, first=4)
    rank.optimizer.change_mode("synchronous")
    return train(rank, 2, first=6)


@pytest.mark.parametrize("exchange", ["dense", "fp16", "ring", "scatter", "lowrank", "auto"])
def test_ranks_end_alike_however_gradients_travel_and_with_layers_that_thaw(exchange):
    first, second = auto(2, there_and_back, exchange=exchange, optimizer=sgd)
    assert_same(first, second)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.AdamW, {"amsgrad": True}),
        (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "nesterov": True}),
        (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
        (torch.optim.NAdam, {}),
        (torch.optim.ASGD, {}),
        (torch.optim.Rprop, {}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.filterwarnings("ignore:nothing is compressed")
def test_ranks_end_alike_with_states_of_all_kinds(kind, options, dtype):
    def made(model: nn.Module) -> torch.optim.Optimizer:
        return kind(model.parameters(), **options)

    first, second = auto(2, there_and_back, model=perceptron().to(dtype), optimizer=made)
    assert_same(first, second)


def test_a_state_of_local_steps_is_refused_where_they_would_be_lost():
    def work(rank: ThreadRank) -> Any:
        rank.optimizer.change_mode("local")
        train(rank, 3)
        return gradsieve_hvd.state_dict(rank.optimizer)

    (state,) = auto(1, work)

    def load(rank: ThreadRank) -> None:
        with pytest.raises(ConfigurationError, match="load it with mode='auto'"):
            gradsieve_hvd.load_state_dict(rank.optimizer, state)

    on_thread_ranks(1, load, optimizer=adamw)


def test_a_scheduler_and_a_loop_that_clips_need_not_know_the_mode():
    def work(rank: ThreadRank) -> Any:
        schedule = torch.optim.lr_scheduler.StepLR(rank.optimizer, step_size=2)
        for step in range(9):
            if step % 3 == 0:
                rank.optimizer.change_mode(("synchronous", "local", "synchronous")[step // 3])
            rank.optimizer.zero_grad()
            loss_of(rank.model, step, rank.rank).backward()
            rank.optimizer.synchronize()
            nn.utils.clip_grad_norm_(rank.model.parameters(), 0.5)
            with rank.optimizer.skip_synchronize():
                rank.optimizer.step()
            schedule.step()
        return weights(rank.model), rank.optimizer.param_groups[0]["lr"]

    results = auto(2, work)
    assert_same(results[1][0], results[0][0])
    assert results[0][1] == pytest.approx(0.01 * 0.1**4)


@pytest.mark.parametrize(
    ("mode", "local_steps", "words"),
    [
        ("fastest", None, "known are 'synchronous', 'balanced', 'local'"),
        ("balanced", None, "needs a gradsieve_hvd.DynamicSampler"),
        ("local", 0, "local_steps=0 must be an integer of at least 1"),
        ("synchronous", 4, "for mode 'local'"),
    ],
)
def test_a_mode_that_is_impossible_on_one_rank_is_refused_on_all_and_training_goes_on(
    mode, local_steps, words
):
    def work(rank: ThreadRank) -> Any:
        train(rank, 1)
        wanted = (mode, local_steps) if rank.rank == 1 else ("local", None)
        with pytest.raises(ConfigurationError, match="on rank 1") as caught:
            rank.optimizer.change_mode(wanted[0], local_steps=wanted[1])
        assert rank.optimizer.mode == "synchronous"
        return str(caught.value), train(rank, 2, first=1)

    results = auto(2, work)
    assert all(words in said for said, _ in results)
    assert_same(results[0][1], results[1][1])


def test_numbers_of_numpy_are_numbers_and_what_is_none_is_refused():
    def work(rank: ThreadRank) -> Any:
        with pytest.raises(ConfigurationError, match=r"local_steps=2\.5 must be an integer"):
            rank.optimizer.change_mode("local", local_steps=2.5)
        for unknown in (None, ["local"], "Local"):
            with pytest.raises(ConfigurationError, match="known are 'synchronous'"):
                rank.optimizer.change_mode(unknown)
        rank.optimizer.change_mode("local", local_steps=np.int64(2))
        return train(rank, 4)

    first, second = auto(2, work)
    assert_same(first, second)


@pytest.mark.parametrize("field", ["mode", "step", "weights"])
def test_ranks_that_differ_do_not_change(field):
    def work(rank: ThreadRank) -> Any:
        train(rank, 1)
        if field == "step":
            rank.optimizer.synchronizer.agreement.other_steps = rank.rank
        if field == "weights" and rank.rank == 1:
            rank.model[0].weight.data[0, 0] += 1.0
        with pytest.raises(RankMismatch, match=f"ranks differ in {field}"):
            rank.optimizer.change_mode("synchronous" if field == "mode" and rank.rank else "local")
        return rank.optimizer.mode

    assert auto(2, work) == ["synchronous"] * 2


def test_while_gradients_are_exchanged_the_mode_stays():
    def work(rank: ThreadRank) -> Any:
        rank.optimizer.zero_grad()
        loss_of(rank.model, 0, rank.rank).backward()
        with pytest.raises(ConfigurationError, match="between backward\\(\\) and step\\(\\)"):
            rank.optimizer.change_mode("local")
        rank.optimizer.step()
        rank.optimizer.change_mode("local")
        return rank.optimizer.mode

    assert auto(2, work) == ["local"] * 2


def test_what_was_set_and_does_not_go_with_a_mode_makes_it_impossible():
    assert auto(1, lambda rank: rank.optimizer.modes)[0] == ("synchronous", "local")
    clipping = laplace(clip_global_norm=1.0)
    assert auto(1, lambda rank: rank.optimizer.modes, compression=clipping)[0] == ("synchronous",)
    sums = auto(1, lambda rank: rank.optimizer.modes, op="sum")[0]
    assert sums == ("synchronous",)


def test_nan_at_the_end_of_local_steps_is_told_to_all_and_the_mode_stays():
    def work(rank: ThreadRank) -> Any:
        train(rank, 1)
        rank.optimizer.change_mode("local")
        before = weights(rank.model)
        rank.optimizer.zero_grad()
        (loss_of(rank.model, 1, rank.rank) * (float("nan") if rank.rank else 1.0)).backward()
        rank.optimizer.step()
        with pytest.raises(NonFiniteGradient):
            rank.optimizer.change_mode("synchronous")
        assert_same(weights(rank.model), before)
        mode = rank.optimizer.mode
        rank.optimizer.change_mode("synchronous")
        return mode, train(rank, 2, first=1)

    results = auto(2, work)
    assert [mode for mode, _ in results] == ["local"] * 2
    assert_same(results[0][1], results[1][1])


def test_shares_are_equal_again_and_every_sample_is_used_once():
    inputs = torch.randn(120, 60, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(120) % 10

    def work(rank: ThreadRank) -> Any:
        sampler = gradsieve_hvd.DynamicSampler(range(120), rank.optimizer, 4, seed=3)
        rank.optimizer.change_mode("balanced")
        used, shares = [], []
        for number, batch in enumerate(sampler):
            rank.optimizer.zero_grad()
            F.cross_entropy(rank.model(inputs[batch]), targets[batch]).backward()
            rank.optimizer.step()
            used += batch
            if number == 2:
                rank.optimizer.batches.change(4, (0.5, 1.5))
            if number == 6:
                rank.optimizer.change_mode("synchronous")
            shares.append(len(batch))
        return used, shares, weights(rank.model)

    results = auto(2, work, compression=lossless(), optimizer=sgd, announce_every=1000)
    assert sorted(results[0][0] + results[1][0]) == list(range(120))
    assert results[0][1][5] < results[1][1][5], "shares were uneven"
    assert abs(results[0][1][9] - results[1][1][9]) <= 1
    assert_same(results[0][2], results[1][2])


@pytest.mark.parametrize("saved_in", ["synchronous", "local"])
def test_a_loaded_state_goes_on_in_its_mode_bit_for_bit(saved_in):
    def work(rank: ThreadRank) -> Any:
        train(rank, 2)
        rank.optimizer.change_mode("local", local_steps=2)
        train(rank, 2, first=2)
        rank.optimizer.change_mode(saved_in)
        state = gradsieve_hvd.state_dict(rank.optimizer)
        kept = copy.deepcopy((rank.model.state_dict(), rank.optimizer.state_dict()))
        first = train(rank, 4, first=4)
        rank.model.load_state_dict(kept[0])
        rank.optimizer.change_mode("synchronous")
        rank.model.load_state_dict(kept[0])
        rank.optimizer.load_state_dict(kept[1])
        gradsieve_hvd.load_state_dict(rank.optimizer, state)
        assert rank.optimizer.mode == saved_in
        again = train(rank, 4, first=4)
        with rank.optimizer.consistent():
            return first, again, weights(rank.model)

    for first, again, common in (results := auto(2, work)):
        assert_same(again, first)
        assert_same(common, results[0][2])


def test_rounds_may_become_longer_and_shorter_while_steps_are_local():
    def work(rank: ThreadRank) -> Any:
        lengths = []
        for first, local_steps in ((0, 2), (4, 4), (8, None)):
            rank.optimizer.change_mode("local", local_steps=local_steps)
            train(rank, 4, first=first)
            lengths.append(rank.optimizer.stats().local_steps)
        return lengths

    assert auto(2, work) == [[2, 4, 4]] * 2


def test_local_steps_are_no_part_of_the_next_rounds_time():
    """It is what a path is chosen by with exchange="auto"."""

    def work(rank: ThreadRank) -> Any:
        train(rank, 1)
        rank.optimizer.change_mode("local")
        began = time.monotonic()
        train(rank, 3, first=1)
        rank.optimizer.change_mode("synchronous")
        return rank.optimizer.synchronizer._clock.ready_seconds < time.monotonic() - began

    assert auto(2, work, exchange="auto") == [True, True]


def test_parameters_may_be_added_between_two_rounds_of_local_steps():
    def work(rank: ThreadRank) -> Any:
        train(rank, 1)
        rank.optimizer.change_mode("local")
        train(rank, 1, first=1)
        more = nn.Parameter(torch.ones(3))
        with pytest.raises(ConfigurationError, match="between two rounds"):
            rank.optimizer.add_param_group({"params": [more]})
        with rank.optimizer.consistent():
            rank.optimizer.add_param_group({"params": [more]})
        for _ in range(3):
            rank.optimizer.zero_grad()
            (more * (rank.rank + 1)).sum().backward()
            rank.optimizer.step()
        rank.optimizer.change_mode("synchronous")
        rank.optimizer.zero_grad()
        (more * (rank.rank + 1)).sum().backward()
        rank.optimizer.step()
        return more.detach()

    first, second = auto(2, work)
    assert torch.equal(first, second)
    assert not torch.equal(first, torch.ones(3))


def test_ranks_whose_data_run_out_join_in_either_mode():
    def work(rank: ThreadRank) -> Any:
        train(rank, 2 + rank.rank)
        rank.optimizer.join()
        rank.optimizer.change_mode("local")
        train(rank, 2 * (rank.rank + 1))
        rank.optimizer.join()
        common = weights(rank.model)
        rank.optimizer.change_mode("synchronous")
        return common, train(rank, 1)

    results = auto(2, work)
    assert_same(results[0][0], results[1][0])
    assert_same(results[0][1], results[1][1])
