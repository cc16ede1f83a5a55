"""What gradsieve cannot serve is refused with a reason, never paired wrongly."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest
import torch
from real_ranks import on_ranks
from torch import nn
from training import (
    assert_equal_on_all_ranks,
    assert_same,
    distribute,
    laplace,
    loss_of,
    perceptron,
    train,
    weights,
)

import gradsieve
import gradsieve_hvd
from gradsieve import MomentumCorrection
from gradsieve_hvd import ConfigurationError
from gradsieve_hvd.dropin import horovod_internals


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
def test_complex_parameters(hvd: Any) -> None:
    """In both settings, on the dense path as on the compressed one, and when they are added later."""
    for nonfinite in ("raise", "propagate"):
        for elements in (10, 1000):
            phase = nn.Parameter(torch.ones(elements, dtype=torch.complex64))
            model = nn.ModuleDict({"real": perceptron(), "complex": nn.ParameterList([phase])})
            distribute(hvd, model, laplace(nonfinite=nonfinite))
            loss = loss_of(model["real"], 0, hvd.rank()) + (phase * 1j).real.sum()
            with pytest.raises(ConfigurationError, match=r"'complex\.0' is torch\.complex64"):
                loss.backward()
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    loss_of(model, 0, hvd.rank()).backward()
    optimizer.step()
    added = nn.Parameter(torch.ones(1000, dtype=torch.complex64))
    optimizer.add_param_group({"params": [added]})
    optimizer.zero_grad()
    (loss_of(model, 1, hvd.rank()) + (added * 1j).real.sum()).backward()
    held = weights(model)
    with pytest.raises(ConfigurationError, match=r"'added\.1\.0' is torch\.complex64"):
        optimizer.step()
    assert_same(weights(model), held)


@on_ranks
def test_a_closure(hvd: Any) -> None:
    """Horovod runs it after the exchange: its gradients would be applied by this rank alone."""
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    held = weights(model)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, 0, hvd.rank())
        loss.backward()
        return loss

    loss_of(model, 0, hvd.rank()).backward()
    for refused_step in (lambda: optimizer.step(closure), lambda: optimizer.step(closure=closure)):
        with pytest.raises(ConfigurationError, match=r"step\(closure\)"):
            refused_step()
    assert_same(weights(model), held)
    optimizer.step()
    assert_equal_on_all_ranks(hvd, weights(model))


WITH_MOMENTUM = (
    functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    functools.partial(torch.optim.RMSprop, momentum=0.9),
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
)
WITHOUT_MOMENTUM = (
    functools.partial(torch.optim.SGD, lr=0.1),
    functools.partial(torch.optim.Adam, betas=(0.0, 0.99)),
    torch.optim.Adagrad,
)


@on_ranks
def test_momentum_correction_on_top_of_the_optimizers_momentum(hvd: Any) -> None:
    for make in WITH_MOMENTUM:
        for allowed in (False, True):
            model = perceptron()
            correction = MomentumCorrection(allow_double_momentum=allowed)
            optimizer = hvd.DistributedOptimizer(
                make(model.parameters()),
                named_parameters=model.named_parameters(),
                compression=laplace(momentum=correction),
            )
            if allowed:
                loss_of(model, 0, hvd.rank()).backward()
                optimizer.step()
                continue
            with pytest.raises(ConfigurationError, match="momentum twice.*allow_double_momentum=True"):
                loss_of(model, 0, hvd.rank()).backward()


@on_ranks
def test_momentum_correction_in_place_of_the_optimizers_momentum(hvd: Any) -> None:
    for make in WITHOUT_MOMENTUM:
        model = perceptron()
        optimizer = hvd.DistributedOptimizer(
            make(model.parameters()),
            named_parameters=model.named_parameters(),
            compression=laplace(momentum=MomentumCorrection()),
        )
        loss_of(model, 0, hvd.rank()).backward()
        optimizer.step()


@on_ranks
def test_a_plain_allreduce(hvd: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"hvd\.allreduce\(\) cannot use it"):
        hvd.allreduce(torch.zeros(1000), compression=laplace())


@on_ranks
def test_a_gradient_replaced_behind_the_optimizers_back(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace())
    with pytest.raises(ConfigurationError, match=r"belongs to no parameter of the optimizer"):
        horovod_internals.parameter_of(optimizer, torch.zeros(1200))


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
