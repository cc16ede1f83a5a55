"""What gradsieve cannot serve is refused with a reason, never paired wrongly."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from real_ranks import on_ranks
from torch import nn
from training import distribute, laplace, loss_of, perceptron, train

import gradsieve
import gradsieve_hvd
from gradsieve_hvd import ConfigurationError, seam


def refused(hvd: Any, message: str, **options: Any) -> None:
    model = perceptron()
    distribute(hvd, model, laplace(), **options)
    with pytest.raises(ConfigurationError, match=message):
        loss_of(model, 0, hvd.rank()).backward()


@on_ranks
def test_adasum(hvd: Any) -> None:
    refused(hvd, "op=Adasum cannot be combined with gradsieve", op=hvd.Adasum)


@on_ranks
def test_sparse_as_dense(hvd: Any) -> None:
    refused(hvd, "sparse_as_dense=True", sparse_as_dense=True)


@on_ranks
def test_other_reductions(hvd: Any) -> None:
    refused(hvd, "op=Max cannot be combined", op=hvd.Max)


@on_ranks
def test_a_plain_allreduce(hvd: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"hvd\.allreduce\(\) cannot use it"):
        hvd.allreduce(torch.zeros(1000), compression=laplace())


@on_ranks
def test_a_gradient_replaced_behind_the_optimizers_back(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    with pytest.raises(ConfigurationError, match=r"belongs to no parameter of the optimizer"):
        seam.parameter_of(optimizer, torch.zeros(1200))


@on_ranks
def test_unnamed_parameters_get_horovods_own_names(hvd: Any) -> None:
    """Without named_parameters Horovod names them by position, which is good enough."""
    model = perceptron()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), compression=laplace())
    loss_of(model, 0, hvd.rank()).backward()
    optimizer.step()
    assert "allreduce.noname.0.0" in gradsieve_hvd.state_dict(optimizer)["layers"]


@on_ranks
def test_an_optimizer_without_gradsieve_has_no_residuals_to_save(hvd: Any) -> None:
    model: nn.Module = perceptron()
    with pytest.raises(ConfigurationError, match="no hvd.DistributedOptimizer with a gradsieve compressor"):
        gradsieve_hvd.state_dict(distribute(hvd, model, hvd.Compression.none))


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_timeouts_that_are_none(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="timeout_seconds"):
        gradsieve_hvd.Compression.topk(timeout_seconds=seconds)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("densty", r"Compression\.group_topk\(\) has no setting 'densty'; did you mean 'density'\?"),
        ("grad_scalar", "did you mean 'grad_scaler'"),
        ("groupsize", "did you mean 'group_size'"),
        ("xyzzy", r"'xyzzy'\. It takes density, .*timeout_seconds"),
    ],
)
def test_a_misspelt_setting(setting: str, said: str) -> None:
    with pytest.raises(TypeError, match=said) as raised:
        gradsieve_hvd.Compression.group_topk(**{setting: 0.1})
    assert "Config" not in str(raised.value)


@on_ranks
def test_what_looks_like_a_compressor_and_is_none(hvd: Any) -> None:
    for given, said in (
        (gradsieve.Compression.laplace(0.01), r"hand Horovod gradsieve_hvd\.Compression\.laplace"),
        (
            gradsieve.Compression.laplace,
            r"not called: write compression=gradsieve_hvd\.Compression\.laplace\(",
        ),
        (gradsieve_hvd.Compression.topk, r"not called: write compression=gradsieve_hvd\.Compression\.topk\("),
        (gradsieve.Compression, r"choose one and call it, as in compression=gradsieve_hvd"),
        (gradsieve_hvd.Compression, r"choose one and call it, as in compression=gradsieve_hvd"),
    ):
        model = perceptron()
        distribute(hvd, model, given)
        with pytest.raises(ConfigurationError, match=said):
            loss_of(model, 0, hvd.rank()).backward()


@on_ranks
def test_a_model_without_a_tensor_large_enough_is_warned_of_once(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace(min_elements=1201))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(hvd, model, optimizer, steps=3)
    said = [str(warning.message) for warning in caught if "nothing is compressed" in str(warning.message)]
    assert len(said) == (1 if hvd.rank() == 0 else 0)
    assert all("1,201 elements (min_elements)" in each and "'0.weight', 1,200" in each for each in said)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = perceptron()
        train(hvd, model, distribute(hvd, model, laplace(min_elements=1200)), steps=1)
