"""A shard executes orders on its tensors, by the user's own optimizer."""

import json
import threading

import numpy as np
import pytest
import torch
from torch.nn import Parameter

from gradsieve.codec import encode_all
from gradsieve.errors import NonFiniteGradient, PayloadError
from gradsieve_hvd.server.events import Contribution
from gradsieve_hvd.server.letters import Drop, MakeVersion, Parts, Send, pack, unpack
from gradsieve_hvd.server.reply import unpacked_weights
from gradsieve_hvd.server.shard import Shard
from gradsieve_hvd.server.shard_optimizer import hyperparameters_of, shard_of

KINDS = [
    pytest.param(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, id="momentum"),
    pytest.param(torch.optim.AdamW, {"lr": 0.01, "betas": (0.8, 0.99)}, id="adamw"),
    pytest.param(torch.optim.Adagrad, {"lr": 0.1}, id="state from the start"),
]


def parts(number, *gradients, tensors=(0,)):
    encoded = tuple(encode_all(gradient.reshape(-1).float(), "float32") for gradient in gradients)
    return Parts(number=number, tensors=list(tensors), parts=encoded)


def release(version, *numbers, hyperparameters=()):
    return MakeVersion(version, tuple(map(Contribution, numbers)), list(hyperparameters))


def sgd_shard(ranks=1):
    parameters = [Parameter(torch.zeros(3))]
    optimizer, copies = shard_of(torch.optim.SGD(parameters, lr=1.0), parameters, [0])
    return Shard(copies, {0: "weight"}, optimizer, ranks), copies[0]


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_updates_are_those_of_the_users_optimizer_from_its_state_on(kind, settings):
    torch.manual_seed(0)
    parameters = [Parameter(torch.randn(4, 3)), Parameter(torch.randn(5))]
    optimizer = kind([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.02}], **settings)
    gradients = [[torch.randn_like(p) for p in parameters] for _ in range(4)]

    def step(number):
        for parameter, gradient in zip(parameters, gradients[number], strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()

    step(0)
    made, copies = shard_of(optimizer, parameters, [1])
    shard = Shard(copies, {1: "bias"}, made, ranks=1)
    for version in (1, 2, 3):
        for group in optimizer.param_groups:
            group["lr"] /= version
        step(version)
        shard.take(parts(version, gradients[version][1], tensors=[1]))
        shard.order([release(version, version, hyperparameters=hyperparameters_of(optimizer))])
        list(shard.execute())
        assert torch.equal(copies[1], parameters[1])


def test_the_users_optimizer_and_weights_are_left_alone():
    parameters = [Parameter(torch.zeros(3))]
    optimizer = torch.optim.SGD(parameters, lr=1.0, momentum=0.9)
    made, copies = shard_of(optimizer, parameters, [0])
    copies[0].grad = torch.ones(3)
    made.step()
    assert torch.equal(parameters[0], torch.zeros(3))
    assert not optimizer.state
    assert optimizer.param_groups[0]["params"] == parameters


def test_an_order_waits_for_the_parts_of_its_pushes_and_those_behind_it_wait_too():
    shard, weights = sgd_shard()
    shard.order([release(1, 7), Send((0, 2), (0, 0))])
    assert list(shard.execute()) == []
    assert not shard.idle
    shard.take(parts(7, torch.ones(3)))
    ((ranks, sent),) = shard.execute()
    assert ranks == (0, 2)
    assert sent.version == 1
    assert torch.equal(sent.parts[0].view(torch.float32), weights)
    assert torch.equal(weights, -torch.ones(3))
    assert shard.idle


def test_what_is_sent_does_not_change_with_the_next_version():
    shard, _ = sgd_shard()
    shard.take(parts(1, torch.ones(3)))
    shard.order([Send((0,), (0,)), release(1, 1)])
    (sent,) = [unpack(pack(weights)) for _, weights in shard.execute()]
    assert not unpacked_weights(sent.parts[0], torch.zeros(3), whole=sent.whole[0]).values.any()


def test_the_step_is_taken_with_the_sum_over_all_ranks_number():
    shard, weights = sgd_shard(ranks=4)
    shard.take(parts(1, torch.full((3,), 8.0)))
    shard.order([release(1, 1)])
    list(shard.execute())
    assert torch.equal(weights, torch.full((3,), -2.0))


def test_a_sum_that_overflows_is_refused_before_any_weight_changes():
    shard, weights = sgd_shard()
    shard.take(parts(1, torch.full((3,), 3e38)))
    shard.take(parts(2, torch.full((3,), 3e38)))
    shard.order([release(1, 1, 2)])
    with pytest.raises(NonFiniteGradient, match="sum is too large"):
        list(shard.execute())
    assert torch.equal(weights, torch.zeros(3))


def test_a_dropped_push_is_counted_and_not_applied():
    shard, weights = sgd_shard()
    shard.take(parts(1, torch.ones(3)))
    shard.order([Drop(1)])
    list(shard.execute())
    assert torch.equal(weights, torch.zeros(3))
    assert shard.ledger.given == shard.ledger.discarded == 3.0


def test_gradients_of_another_model_are_refused_and_nothing_is_kept():
    shard, _ = sgd_shard()
    with pytest.raises(PayloadError, match="gradient of 'weight'"):
        shard.take(parts(1, torch.ones(4)))
    with pytest.raises(PayloadError, match="which another rank keeps"):
        shard.take(parts(1, torch.ones(3), tensors=[5]))
    assert shard.ledger.given == 0


def test_a_gradient_that_is_not_encoded_counts_as_one_that_is_and_of_another_size_is_refused():
    encoded, first = sgd_shard()
    raw, second = sgd_shard()
    gradient = torch.tensor([1.0, -2.0, 0.5])
    encoded.take(parts(1, gradient))
    raw.take(Parts(number=1, tensors=[0], raw=[0], parts=(gradient.view(torch.uint8),)))
    for shard in (encoded, raw):
        shard.order([release(1, 1)])
        list(shard.execute())
    assert torch.equal(first, second)
    assert raw.ledger == encoded.ledger
    for damaged in (gradient[:2].view(torch.uint8), gradient.view(torch.uint8)[:-1]):
        with pytest.raises(PayloadError, match="gradient of 'weight': found"):
            raw.take(Parts(number=2, tensors=[0], raw=[0], parts=(damaged,)))


@pytest.mark.parametrize(("moved", "whole"), [(10, False), (900, True)])
def test_of_a_gradient_that_is_mostly_zero_only_what_moved_is_sent(moved, whole):
    """As that of an embedding, which a push may bring as it lies in memory."""
    parameters = [Parameter(torch.zeros(1000))]
    optimizer, copies = shard_of(torch.optim.SGD(parameters, lr=1.0), parameters, [0])
    shard = Shard(copies, {0: "embedding"}, optimizer, ranks=1)
    gradient = torch.cat([torch.ones(moved), torch.zeros(1000 - moved)])
    shard.take(Parts(number=1, tensors=[0], raw=[0], parts=(gradient.view(torch.uint8),)))
    shard.order([release(1, 1), Send((0,), (0,))])
    ((_, sent),) = shard.execute()
    assert sent.whole == [whole]
    present = torch.zeros(1000)
    unpacked_weights(sent.parts[0], present, whole=whole).put_into(present)
    assert torch.equal(present, -gradient)


def test_numbers_of_numpy_are_hyperparameters_too():
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.AdamW([parameter], lr=0.1)
    optimizer.param_groups[0] |= {
        "lr": np.float32(0.5),
        "betas": (np.float64(0.5), 0.75),
        "warm": np.int64(3),
    }
    (told,) = json.loads(json.dumps(hyperparameters_of(optimizer)))
    assert (told["lr"], told["betas"], told["warm"]) == (0.5, [0.5, 0.75], 3)


class Wrapped(torch.optim.Optimizer):
    """As Lookahead: around another optimizer, with settings, counters and parameters among its attributes."""

    def __init__(self, inner, scale):
        self.inner, self.scale, self.taken = inner, scale, 0
        self.first = inner.param_groups[0]["params"][0]
        super().__init__(inner.param_groups, inner.defaults)
        inner.param_groups = self.param_groups

    def step(self, closure=None):
        self.taken += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(self.scale)
        self.inner.step()


def test_attributes_of_a_users_class_go_with_it_and_what_is_not_kept_is_left_alone():
    parameters = [Parameter(torch.zeros(3)), Parameter(torch.zeros(2))]
    optimizer = Wrapped(torch.optim.SGD(parameters, lr=1.0), scale=2.0)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # puts a step of its own onto the optimizer
    made, copies = shard_of(optimizer, parameters, [1])
    assert made.inner.param_groups is made.param_groups
    assert not made.first.numel()
    made.param_groups[0]["lr"] = 0.5
    parameters[0].grad, copies[1].grad = torch.ones(3), torch.ones(2)
    made.step()
    assert torch.equal(copies[1], torch.full((2,), -1.0))
    assert all(not parameter.any() for parameter in parameters)
    assert (made.taken, optimizer.taken) == (1, 0)


def test_what_cannot_be_copied_is_shared_and_state_is_the_shards_own():
    parameters = [Parameter(torch.zeros(3))]
    optimizer = torch.optim.SGD(parameters, lr=1.0, momentum=0.9)
    parameters[0].grad = torch.ones(3)
    optimizer.step()
    optimizer.lock = threading.Lock()
    optimizer.momentum = optimizer.state[parameters[0]]["momentum_buffer"]
    made, copies = shard_of(optimizer, parameters, [0])
    assert made.lock is optimizer.lock
    assert made.momentum is made.state[copies[0]]["momentum_buffer"]
    assert made.momentum is not optimizer.momentum


def test_an_optimizer_that_another_is_wrapped_around_keeps_its_attributes():
    parameters = [Parameter(torch.zeros(2))]
    optimizer = Wrapped(Wrapped(torch.optim.SGD(parameters, lr=1.0), scale=3.0), scale=2.0)
    made, copies = shard_of(optimizer, parameters, [0])
    copies[0].grad = torch.ones(2)
    made.step()
    assert torch.equal(copies[0], torch.full((2,), -6.0))
    assert not parameters[0].any()
