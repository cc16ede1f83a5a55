"""What users do beside ``zero_grad()``, ``backward()`` and ``step()`` works, or is an error with a remedy."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from thread_ranks import ThreadRank, on_thread_ranks, plain_sgd
from torch import nn
from torch.nn import functional as F
from training import assert_same, batch, laplace, loss_of, perceptron, sgd, weights

import gradsieve_hvd
from gradsieve.errors import ConfigurationError, ExchangeError
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks

RANKS = 2


def step(rank: ThreadRank, number: int = 0) -> None:
    rank.optimizer.zero_grad()
    loss_of(rank.model, number, rank.rank).backward()
    rank.optimizer.step()


def assert_alike(results: list[list[torch.Tensor]]) -> None:
    for result in results[1:]:
        assert_same(result, results[0])


def put_another(rank: ThreadRank) -> None:
    groups, layer = rank.optimizer.param_groups, rank.model[0]
    layer.weight = nn.Parameter(layer.weight.detach().clone())
    groups[0]["params"][0] = layer.weight


def put_one_more(rank: ThreadRank) -> None:
    rank.model.append(nn.Linear(10, 10))
    rank.optimizer.param_groups[0]["params"].extend(rank.model[-1].parameters())


@pytest.mark.parametrize("put", [put_another, put_one_more])
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="synchronous"),
        pytest.param({"mode": "local", "local_steps": 2}, id="local"),
        pytest.param({"mode": "auto"}, id="auto"),
        pytest.param({"mode": "bsp"}, id="served"),
    ],
)
def test_a_parameter_that_was_put_into_a_group_by_hand_is_refused_rather_than_trained_alone(put, settings):
    def train(rank: ThreadRank) -> None:
        put(rank)
        before = weights(rank.model)
        with pytest.raises(ConfigurationError, match=r"params'\]\[.\].* was put there by hand"):
            step(rank)
        assert_same(weights(rank.model), before)

    on_thread_ranks(RANKS, train, **settings)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("mode", ["synchronous", "local", "auto"])
def test_a_copy_which_would_train_alone_is_refused(copied, mode):
    def train(rank: ThreadRank) -> None:
        step(rank)
        with pytest.raises(ConfigurationError, match="cannot be copied or pickled"):
            copied(rank.optimizer)
        step(rank, 1)

    on_thread_ranks(RANKS, train, mode=mode)


# torch warns once in a process; the gradients are let go of here.
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("exchange", ["allgather", "ring", "scatter", "lowrank", "dense"])
def test_gradients_with_a_graph_are_exchanged_as_those_without(exchange, clipped):
    def train(rank: ThreadRank, graph: bool) -> list[torch.Tensor]:
        for number in range(3):
            rank.optimizer.zero_grad()
            loss_of(rank.model, number, rank.rank).backward(create_graph=graph)
            rank.optimizer.step()
            rank.optimizer.zero_grad()  # else the graph keeps itself alive
        return weights(rank.model)

    compression = laplace(clip_global_norm=0.5 if clipped else None)
    settings: dict[str, Any] = {"exchange": exchange, "optimizer": sgd, "compression": compression}
    with_graph = on_thread_ranks(RANKS, lambda rank: train(rank, True), **settings)
    assert_alike(with_graph + on_thread_ranks(RANKS, lambda rank: train(rank, False), **settings))


def test_what_has_not_been_synchronized_is_not_applied():
    def train(rank: ThreadRank) -> list[torch.Tensor]:
        loss_of(rank.model, 0, rank.rank).backward()
        before = weights(rank.model)
        with (
            rank.optimizer.skip_synchronize(),
            pytest.raises(ConfigurationError, match="apply this rank's own"),
        ):
            rank.optimizer.step()
        assert_same(weights(rank.model), before)
        rank.optimizer.step()
        return weights(rank.model)

    def plain(rank: ThreadRank) -> list[torch.Tensor]:
        step(rank)
        return weights(rank.model)

    assert_alike(on_thread_ranks(RANKS, train) + on_thread_ranks(RANKS, plain))


class Interrupted(BaseException):
    pass


def test_a_rank_that_leaves_a_step_which_others_take_does_not_train_on_beside_them(monkeypatch):
    def train(rank: ThreadRank) -> None:
        step(rank)
        if rank.rank == 1:
            leaving(rank)
        else:
            step(rank, 1)
            with pytest.raises(ExchangeError, match="nothing from rank 1"):
                step(rank, 2)

    def leaving(rank: ThreadRank) -> None:
        loss_of(rank.model, 1, rank.rank).backward()
        with monkeypatch.context() as patched:
            patched.setattr(rank.optimizer.synchronizer._launches, "finish", interrupted)
            with pytest.raises(Interrupted):
                rank.optimizer.synchronize()
        for _ in range(2):
            with pytest.raises(ExchangeError, match="was broken off on rank 1.*from a checkpoint") as error:
                rank.optimizer.step()
            assert isinstance(error.value.__cause__, Interrupted)

    def interrupted(_: object) -> None:
        raise Interrupted

    on_thread_ranks(RANKS, train, timeout=1.0, compression=laplace(timeout_seconds=2.0))


def test_after_an_exception_in_backward_a_step_is_given_up_by_synchronize_and_zero_grad():
    def train(rank: ThreadRank, fails: bool) -> list[torch.Tensor]:
        step(rank)
        if fails:
            rank.optimizer.zero_grad()
            hook = rank.model[0].weight.register_hook(failing)
            with pytest.raises(ValueError, match="in backward"):
                loss_of(rank.model, 7, rank.rank).backward()
            hook.remove()
            with pytest.raises(AssertionError, match=r"call synchronize\(\) and then zero_grad\(\)"):
                rank.optimizer.zero_grad()
            rank.optimizer.synchronize()
        step(rank, 1)
        return weights(rank.model)

    def failing(_: torch.Tensor) -> None:
        raise ValueError("in backward")

    failed = on_thread_ranks(RANKS, lambda rank: train(rank, True))
    assert_alike(failed + on_thread_ranks(RANKS, lambda rank: train(rank, False)))


@pytest.mark.parametrize("convert", [nn.Module.double, nn.Module.bfloat16, nn.Module.half])
@pytest.mark.parametrize("exchange", ["allgather", "lowrank", "dense"])
def test_a_model_may_change_its_type_while_it_trains(convert, exchange):
    def train(rank: ThreadRank) -> list[torch.Tensor]:
        step(rank)
        convert(rank.model)
        before = weights(rank.model)
        step(rank, 1)
        assert not torch.equal(weights(rank.model)[0], before[0])
        return weights(rank.model)

    assert_alike(on_thread_ranks(RANKS, train, exchange=exchange))


class Quantized(nn.Module):
    """A layer beside weights that nobody trains, of a type that has no gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = perceptron()
        self.bytes = nn.Parameter(torch.zeros(30, 20, dtype=torch.uint8), requires_grad=False)
        self.complex = nn.Parameter(torch.zeros(30, dtype=torch.complex64), requires_grad=False)


@pytest.mark.parametrize("mode", ["synchronous", "local", "auto", "bsp"])
def test_frozen_parameters_of_any_type_may_be_among_the_optimizers(mode):
    def train(rank: ThreadRank) -> list[torch.Tensor]:
        for number in range(2):
            inputs, targets = batch(number, rank.rank)
            F.cross_entropy(rank.model.layer(inputs), targets).backward()
            rank.optimizer.step()
            rank.optimizer.zero_grad()
        if mode != "synchronous":
            return []
        rank.model.complex.requires_grad_(True)
        with pytest.raises(ConfigurationError, match="complex64, which gradsieve cannot exchange"):
            rank.optimizer.step()
        return weights(rank.model)

    assert_alike(on_thread_ranks(RANKS, train, model=Quantized(), mode=mode))


def test_with_gradients_of_another_type_than_the_parameters_all_ranks_end_alike():
    def train(rank: ThreadRank) -> list[torch.Tensor]:
        for parameter in rank.model.parameters():
            parameter.grad_dtype = torch.bfloat16
        step(rank)
        assert rank.model[0].weight.grad.dtype == torch.bfloat16
        return weights(rank.model)

    for exchange in ("allgather", "lowrank", "dense"):
        assert_alike(on_thread_ranks(RANKS, train, exchange=exchange))


class Shapes(nn.Module):
    """A tensor of no element, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.empty = perceptron(), nn.Parameter(torch.zeros(0, 20))
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs.to(self.scale.dtype)) * self.scale + self.empty.sum()


@pytest.mark.parametrize("exchange", ["allgather", "ring", "scatter", "lowrank", "dense", "auto"])
def test_tensors_may_have_no_element_or_no_dimension(exchange):
    def train(rank: ThreadRank) -> list[torch.Tensor]:
        for number in range(2):
            rank.optimizer.zero_grad()
            inputs, targets = batch(number, rank.rank)
            F.cross_entropy(rank.model(inputs), targets).backward()
            rank.optimizer.step()
        return weights(rank.model)

    every = laplace(min_elements=0)
    assert_alike(on_thread_ranks(RANKS, train, model=Shapes(), exchange=exchange, compression=every))


def test_step_hooks_see_the_sums_and_may_clip_them():
    def train(rank: ThreadRank, hooked: bool) -> list[torch.Tensor]:
        def clip(*_: object) -> None:
            torch.nn.utils.clip_grad_norm_(rank.model.parameters(), 0.1)

        if hooked:
            rank.optimizer.register_step_pre_hook(clip)
        for number in range(3):
            rank.optimizer.zero_grad()
            loss_of(rank.model, number, rank.rank).backward()
            if not hooked:
                rank.optimizer.synchronize()
                clip()
            rank.optimizer.step()
        return weights(rank.model)

    hooked = on_thread_ranks(RANKS, lambda rank: train(rank, True))
    assert_alike(hooked + on_thread_ranks(RANKS, lambda rank: train(rank, False)))


def made_with(optimizer: Any, named: Any) -> Callable[[ThreadTransport], None]:
    def make(transport: ThreadTransport) -> None:
        gradsieve_hvd.DistributedOptimizer(optimizer, named, laplace(), transport=transport)

    return make


@pytest.mark.parametrize(
    ("named", "found"),
    [
        pytest.param(lambda model: model.parameters(), "found Parameter", id="parameters without names"),
        pytest.param(lambda model: model, "found Sequential", id="a model"),
        pytest.param(lambda model: dict(model.named_parameters()), "found str", id="a dictionary"),
        pytest.param(lambda _: 5, "found int", id="a number"),
        pytest.param(lambda model: [*enumerate(model.parameters())], "found tuple", id="numbered"),
    ],
)
def test_what_are_no_named_parameters_is_refused_with_what_to_pass(named, found):
    model = perceptron()
    with pytest.raises(ConfigurationError, match=rf"{found}\. Pass model\.named_parameters\(\)"):
        run_ranks(1, made_with(plain_sgd(model), named(model)))


@pytest.mark.parametrize("optimizer", [None, perceptron(), torch.optim.SGD])
def test_what_is_not_an_optimizer_is_refused(optimizer):
    with pytest.raises(ConfigurationError, match="takes an optimizer, such as"):
        run_ranks(1, made_with(optimizer, perceptron().named_parameters()))


def test_a_lazy_module_is_refused_until_it_knows_its_shape():
    model = nn.Sequential(nn.LazyLinear(20), nn.ReLU(), nn.Linear(20, 10))
    with pytest.raises(ConfigurationError, match=r"'0\.weight' has no shape yet"):
        run_ranks(1, made_with(plain_sgd(model), model.named_parameters()))
    model(torch.ones(1, 60))
    assert_alike(on_thread_ranks(RANKS, lambda rank: [step(rank), weights(rank.model)][1], model=model))
