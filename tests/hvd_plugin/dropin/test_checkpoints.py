"""Residuals are saved and loaded per rank, beside the optimizer's own state."""

from __future__ import annotations

import copy
import io
import math
import warnings
from typing import Any

import pytest
import torch
from real_ranks import on_ranks
from torch import nn
from training import assert_same, distribute, laplace, perceptron, residuals, train, weights

import gradsieve_hvd
from gradsieve_hvd import ConfigurationError, DensityWarmup


def through_a_file(state: dict[str, Any]) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@on_ranks
def test_a_resumed_training_goes_on_bit_for_bit(hvd: Any) -> None:
    warmup = DensityWarmup(start=0.5, steps=5)
    whole = perceptron()
    expected = train(hvd, whole, distribute(hvd, whole, laplace(warmup=warmup)), steps=6)

    first = perceptron()
    optimizer = distribute(hvd, first, laplace(warmup=warmup))
    train(hvd, first, optimizer, steps=3)
    saved = through_a_file(
        {
            "model": first.state_dict(),
            "optimizer": optimizer.state_dict(),
            "residuals": gradsieve_hvd.state_dict(optimizer),
        }
    )

    resumed = perceptron(seed=1)
    resumed.load_state_dict(saved["model"])
    optimizer = distribute(hvd, resumed, laplace(warmup=warmup))
    optimizer.load_state_dict(saved["optimizer"])
    gradsieve_hvd.load_state_dict(optimizer, saved["residuals"])
    assert_same(train(hvd, resumed, optimizer, steps=3, first=3), expected)


@on_ranks
def test_broadcasting_the_optimizer_state_leaves_residuals_alone(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    train(hvd, model, optimizer, steps=3)
    saved = gradsieve_hvd.state_dict(optimizer)
    fresh = perceptron()
    optimizer = distribute(hvd, fresh, laplace())
    gradsieve_hvd.load_state_dict(optimizer, saved)
    hvd.broadcast_parameters(fresh.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    now = residuals(optimizer)
    assert all(
        torch.equal(now[name], layer["feedback"]["residual"]) for name, layer in saved["layers"].items()
    )
    everyone = hvd.allgather(now["0.weight"].reshape(1, -1))
    assert not torch.equal(everyone[0], everyone[1]), "residuals are a rank's own; equal ones were broadcast"
    train(hvd, fresh, optimizer, steps=2)


@on_ranks
def test_another_ranks_residuals_load_as_zero_with_a_warning(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    train(hvd, model, optimizer, steps=3)
    foreign = copy.deepcopy(gradsieve_hvd.state_dict(optimizer))
    foreign["rank"] = (hvd.rank() + 1) % hvd.size()
    with pytest.warns(
        UserWarning,
        match=rf"saved by rank {foreign['rank']} of {hvd.size()} and are loaded by rank {hvd.rank()}",
    ):
        gradsieve_hvd.load_state_dict(optimizer, foreign)
    assert all(not bool(residual.any()) for residual in residuals(optimizer).values())
    foreign["rank"], foreign["size"] = hvd.rank(), hvd.size() + 1
    with pytest.warns(UserWarning, match=f"of {hvd.size() + 1} and are loaded by"):
        gradsieve_hvd.load_state_dict(optimizer, foreign)
    train(hvd, model, optimizer, steps=1)


@on_ranks
def test_a_state_that_does_not_fit_changes_nothing(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    train(hvd, model, optimizer, steps=3)
    before = residuals(optimizer)
    good = gradsieve_hvd.state_dict(optimizer)
    unknown = copy.deepcopy(good)
    unknown["layers"]["9.weight"] = unknown["layers"]["0.weight"]
    short = copy.deepcopy(good)
    short["layers"]["0.weight"]["feedback"]["residual"] = torch.ones(1200)
    short["layers"]["2.weight"]["feedback"]["residual"] = torch.ones(7)
    for state, message in (
        (unknown, "9.weight"),
        (short, "2.weight"),
        ({**good, "version": 99}, "version 99"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            gradsieve_hvd.load_state_dict(optimizer, state)
        assert all(torch.equal(residuals(optimizer)[name], before[name]) for name in before)


@on_ranks
def test_every_field_is_checked_and_nothing_changes(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace(clip_global_norm=1.0))
    train(hvd, model, optimizer, steps=3)
    good = gradsieve_hvd.state_dict(optimizer)
    with pytest.raises(ConfigurationError, match="expected a dictionary"):
        gradsieve_hvd.load_state_dict(optimizer, None)
    for field, values in {
        "version": [None, "2", 1, True, torch.ones(1)],
        "rank": [None, "0", -1, True, hvd.size()],
        "size": [None, "2", -1, 0],
        "step": [None, "3", -1, 2.5, math.nan, True],
        "layers": [None, [], {3: good["layers"]["0.weight"]}, {"0.weight": None}],
        "dense": [None, [], {"0.weight": {"velocity": torch.zeros(20, 60)}}],
        "policy": [None, [], {"foreign": 1}],
        "clipping": [[], {"foreign": 1}, {"reduced_norm": -1.0, "spread": 1.0}],
    }.items():
        for value in values:
            with pytest.raises(ConfigurationError):
                gradsieve_hvd.load_state_dict(optimizer, {**good, field: value})
        if field != "clipping":
            with pytest.raises(ConfigurationError):
                gradsieve_hvd.load_state_dict(optimizer, {k: v for k, v in good.items() if k != field})
    now = gradsieve_hvd.state_dict(optimizer)
    assert now["step"] == good["step"]
    assert now["clipping"] == good["clipping"]
    for name, layer in good["layers"].items():
        assert now["layers"][name]["threshold"] == layer["threshold"]
        assert torch.equal(now["layers"][name]["feedback"]["residual"], layer["feedback"]["residual"])


@on_ranks
def test_states_load_with_and_without_wrappers_of_the_model(hvd: Any) -> None:
    plain, inner = perceptron(), perceptron()
    wrapped = torch.compile(nn.DataParallel(inner))
    optimizers = [distribute(hvd, model, laplace()) for model in (plain, wrapped)]
    train(hvd, plain, optimizers[0], steps=3)
    saved = gradsieve_hvd.state_dict(optimizers[0])
    gradsieve_hvd.load_state_dict(optimizers[1], saved)
    back = gradsieve_hvd.state_dict(optimizers[1])
    assert set(back["layers"]) == {"_orig_mod.module.0.weight", "_orig_mod.module.2.weight"}
    train(hvd, plain, optimizers[0], steps=1)
    gradsieve_hvd.load_state_dict(optimizers[0], back)
    assert all(
        torch.equal(residuals(optimizers[0])[name], layer["feedback"]["residual"])
        for name, layer in saved["layers"].items()
    )


@on_ranks
def test_the_optimizers_own_state_holds_no_residuals(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    train(hvd, model, optimizer, steps=1)
    plain = distribute(hvd, perceptron(), hvd.Compression.none)
    train(hvd, perceptron(), plain, steps=0)
    assert {key for state in optimizer.state_dict()["state"].values() for key in state} == {"momentum_buffer"}


@on_ranks
def test_optimizers_with_a_compressor_can_be_copied(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    held = train(hvd, model, optimizer, steps=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copied = copy.deepcopy(optimizer.state_dict())
    assert len(copied["state"]) == 4
    assert_same(weights(model), held)
