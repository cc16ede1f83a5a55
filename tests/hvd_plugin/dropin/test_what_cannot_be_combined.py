"""What gradsieve cannot serve is refused with a reason, never paired wrongly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from real_ranks import on_ranks
from torch import nn
from training import distribute, laplace, loss_of, perceptron

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


def test_a_misspelt_setting() -> None:
    with pytest.raises(TypeError, match="densty"):
        gradsieve_hvd.Compression.topk(densty=0.1)
