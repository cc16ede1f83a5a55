"""Adaptive densities, momentum correction and the sampled baseline through the stock Horovod optimizer."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from real_ranks import on_ranks
from torch import nn
from training import (
    TIMEOUT,
    assert_equal_on_all_ranks,
    assert_same,
    batch,
    distribute,
    loss_of,
    perceptron,
    train,
    weights,
)

import gradsieve
import gradsieve_hvd
from gradsieve import LossRecorder, MomentumCorrection
from gradsieve_hvd.optimizers import reducer_of

SMALL = {"density": 0.05, "min_elements": 100, "timeout_seconds": TIMEOUT}


def layered(**settings: Any) -> Any:
    return gradsieve_hvd.Compression.layered(
        **{**SMALL, "adapt_steps": 2, "reanchor_steps": 3, "dead_band": 0.0, **settings}
    )


def importance(recorder: LossRecorder, **settings: Any) -> Any:
    return gradsieve_hvd.Compression.importance(**{**SMALL, "period": 3, "recorder": recorder, **settings})


def train_recorded(hvd: Any, model: nn.Module, optimizer: Any, recorder: LossRecorder, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        inputs, targets = batch(step, hvd.rank())
        gradsieve.cross_entropy(model(inputs), targets, recorder=recorder).backward()
        optimizer.step()


def loss(model: nn.Module) -> float:
    """The same on every rank, so that none stays behind in a collective when it is too high."""
    with torch.no_grad():
        return float(sum(loss_of(model, step, rank=0) for step in range(5))) / 5


@on_ranks
def test_layered_trains_and_its_densities_move_within_the_budget(hvd: Any) -> None:
    model = perceptron()
    before = loss(model)
    optimizer = distribute(hvd, model, layered())
    seen = set()
    for first in range(25):
        train(hvd, model, optimizer, steps=1, first=first % 5)
        layers = gradsieve_hvd.state_dict(optimizer)["layers"]
        densities = layers["0.weight"]["policy"]["density"], layers["2.weight"]["policy"]["density"]
        assert (1200 * densities[0] + 200 * densities[1]) / 1400 <= 0.05 * (1 + 1e-12)
        seen.add(densities)
    assert_equal_on_all_ranks(hvd, weights(model))
    seen_by_all = hvd.allreduce(torch.tensor(float(len(seen))), op=hvd.Sum)
    assert seen_by_all > hvd.size()
    assert loss(model) < 0.7 * before


@on_ranks
def test_importance_trains_and_hears_of_losses_and_delays(hvd: Any) -> None:
    recorder = LossRecorder()
    model = perceptron()
    before = loss(model)
    # Not less than the configured density: how busy the machine is must not decide whether 25 steps are
    # enough. With 4 ranks and 2 % all the time the loss falls to 0.72 of the first, with 5 % to 0.64.
    optimizer = distribute(hvd, model, importance(recorder, bounds=(0.05, 0.25)))
    for _ in range(5):
        train_recorded(hvd, model, optimizer, recorder, range(5))
    assert_equal_on_all_ranks(hvd, weights(model))
    assert loss(model) < 0.7 * before
    state = gradsieve_hvd.state_dict(optimizer)["policy"]
    assert state["steps"] == 25
    assert state["empty_seconds"] > 0
    # the first step's losses came before the policy did; the last period is not over
    assert len(state["recent_losses"]) == 8 * 23
    assert len(state["unread_losses"]) == 1


@on_ranks
def test_a_slower_network_sends_less(hvd: Any) -> None:
    recorder = LossRecorder()
    model = perceptron()
    optimizer = distribute(hvd, model, importance(recorder, loss_power=0.0))
    train(hvd, model, optimizer, steps=1)
    reducer = reducer_of(optimizer)
    policy: Any = reducer.policy
    state = policy.state_dict() | {
        "empty_seconds": 0.0,
        "seconds_per_byte": 1e-9,
        "reference_seconds_per_byte": 1e-9,
        "first_seconds_per_byte": [],
    }
    policy.load_state_dict(state)
    for step in range(6):
        reducer.policy.observe_exchange(1.0, 1000)  # a million times slower than the reference
        train(hvd, model, optimizer, steps=1, first=step)
    assert gradsieve_hvd.state_dict(optimizer)["policy"]["density"] == 0.001


@on_ranks
def test_the_wait_for_an_exchange_is_measured_with_and_without_an_own_synchronize(hvd: Any) -> None:
    for own in (False, True):
        model = perceptron()
        optimizer = distribute(hvd, model, importance(LossRecorder(), loss_power=0.0, period=1000))
        for step in range(8):
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            if own:
                optimizer.synchronize()
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                optimizer.step()
        observed = gradsieve_hvd.state_dict(optimizer)["policy"]["first_seconds_per_byte"]
        assert len(observed) <= 8
        assert all(0 <= delay < TIMEOUT for delay in observed)


@on_ranks
def test_a_skipped_step_leaves_no_trace_in_the_policy(hvd: Any) -> None:
    model, twin = perceptron(), perceptron()
    optimizer, twins = (distribute(hvd, m, layered()) for m in (model, twin))
    for step in range(10):
        if step in (3, 4, 8):
            optimizer.zero_grad()
            loss_of(model, 100 + step, hvd.rank()).backward()
            optimizer.synchronize()  # and no step
        train(hvd, model, optimizer, steps=1, first=step)
    train(hvd, twin, twins, steps=10)
    first, second = gradsieve_hvd.state_dict(optimizer), gradsieve_hvd.state_dict(twins)
    assert first["policy"] == second["policy"]
    for name, layer in first["layers"].items():
        assert layer["policy"] == second["layers"][name]["policy"]
    assert_same(weights(model), weights(twin))


@on_ranks
def test_a_resumed_training_goes_on_bit_for_bit_with_policy_and_momentum(hvd: Any) -> None:
    def made(seed: int = 0) -> tuple[nn.Module, Any]:
        model = perceptron(seed)
        settings = layered(momentum=MomentumCorrection(), clip_norm=1.0)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05),
            named_parameters=model.named_parameters(),
            compression=settings,
        )
        return model, optimizer

    whole, optimizer = made()
    expected = train(hvd, whole, optimizer, steps=14)
    first, optimizer = made()
    train(hvd, first, optimizer, steps=7)
    file = io.BytesIO()
    torch.save([first.state_dict(), gradsieve_hvd.state_dict(optimizer)], file)
    file.seek(0)
    saved, state = torch.load(file, weights_only=True)
    assert set(state["dense"]) == {"0.bias", "2.bias"}
    resumed, optimizer = made(seed=1)
    resumed.load_state_dict(saved)
    gradsieve_hvd.load_state_dict(optimizer, state)
    assert_same(train(hvd, resumed, optimizer, steps=7, first=7), expected)


@on_ranks
def test_a_foreign_state_keeps_the_shared_velocities_and_starts_the_policy_anew(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, layered(momentum=MomentumCorrection(allow_double_momentum=True)))
    train(hvd, model, optimizer, steps=5)
    state = copy.deepcopy(gradsieve_hvd.state_dict(optimizer))
    state["rank"] = (hvd.rank() + 1) % hvd.size()
    other = distribute(hvd, perceptron(), layered(momentum=MomentumCorrection(allow_double_momentum=True)))
    with pytest.warns(UserWarning, match="starting from zero residuals"):
        gradsieve_hvd.load_state_dict(other, state)
    loaded = gradsieve_hvd.state_dict(other)
    assert (loaded["layers"], loaded["policy"], loaded["step"]) == ({}, {"steps": 0}, 5)
    for name, velocity in state["dense"].items():
        assert torch.equal(loaded["dense"][name]["velocity"], velocity["velocity"])


@on_ranks
def test_a_state_of_another_compressor_is_refused(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, layered())
    train(hvd, model, optimizer, steps=2)
    state = gradsieve_hvd.state_dict(optimizer)
    for compression, message in (
        (gradsieve_hvd.Compression.laplace(**SMALL), "saved state, field 'steps'"),
        (layered(momentum=MomentumCorrection(allow_double_momentum=True)), "'velocity': found NoneType"),
    ):
        other = distribute(hvd, perceptron(), compression)
        with pytest.raises(gradsieve_hvd.ConfigurationError, match=message):
            gradsieve_hvd.load_state_dict(other, state)


@on_ranks
def test_corrected_momentum_without_masking_trains_like_sgd_with_momentum(hvd: Any) -> None:
    """At density 1; large and small (dense) tensors alike."""
    plain, ours = perceptron(), perceptron()
    expected = train(hvd, plain, distribute(hvd, plain, hvd.Compression.none))
    compression = gradsieve_hvd.Compression.topk(
        density=1.0, min_elements=100, timeout_seconds=TIMEOUT, momentum=MomentumCorrection(masking=False)
    )
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(ours.parameters(), lr=0.1),
        named_parameters=ours.named_parameters(),
        compression=compression,
    )
    # sums and products are rounded in another order
    assert_same(train(hvd, ours, optimizer), expected, rtol=1e-5, atol=1e-6)
    assert_equal_on_all_ranks(hvd, weights(ours))


@on_ranks
def test_a_skipped_step_leaves_dense_velocities_as_they_were(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, layered(momentum=MomentumCorrection(allow_double_momentum=True)))
    train(hvd, model, optimizer, steps=3)
    before = gradsieve_hvd.state_dict(optimizer)["dense"]
    optimizer.zero_grad()
    loss_of(model, 50, hvd.rank()).backward()
    optimizer.synchronize()
    optimizer.zero_grad()
    after = gradsieve_hvd.state_dict(optimizer)["dense"]
    assert all(torch.equal(before[name]["velocity"], after[name]["velocity"]) for name in before)
    train(hvd, model, optimizer, steps=1, first=3)


@on_ranks
def test_loss_scaling_does_not_reach_the_momentum(hvd: Any) -> None:
    results = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=2.0**10)):
        model = perceptron()
        compression = gradsieve_hvd.Compression.topk(
            **SMALL, momentum=MomentumCorrection(), grad_scaler=scaler
        )
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            named_parameters=model.named_parameters(),
            compression=compression,
        )
        for step in range(5):
            optimizer.zero_grad()
            value = loss_of(model, step, hvd.rank())
            if scaler is None:
                value.backward()
                optimizer.step()
                continue
            scaler.scale(value).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
        results.append(weights(model))
    assert_same(results[1], results[0])  # powers of two change no bit


@on_ranks
def test_the_sampled_baseline_trains(hvd: Any) -> None:
    model = perceptron()
    before = loss(model)
    optimizer = distribute(hvd, model, gradsieve_hvd.Compression.sampled(**SMALL))
    for _ in range(5):
        train(hvd, model, optimizer, steps=5)
    assert_equal_on_all_ranks(hvd, weights(model))
    assert loss(model) < 0.7 * before


@on_ranks
def test_ranks_that_differ_in_a_policys_settings_are_found_out(hvd: Any) -> None:
    model = perceptron()
    distribute(hvd, model, layered(adapt_steps=2 + hvd.rank()))
    with pytest.raises(gradsieve_hvd.RankMismatch, match=r"compression\.adapt_steps is 2 on rank 0 and 3"):
        loss_of(model, 0, hvd.rank()).backward()
