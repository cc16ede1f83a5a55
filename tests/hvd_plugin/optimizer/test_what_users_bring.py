"""Models and optimizers as users have them train by both front doors, and end alike on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from real_ranks import on_ranks
from torch import nn
from torch.nn import functional as F
from training import assert_equal_on_all_ranks, laplace, loss_of, perceptron, sgd, weights

import gradsieve_hvd

Loss = Callable[[nn.Module, int, int], torch.Tensor]
Case = tuple[nn.Module, torch.optim.Optimizer, Loss]


def of_kind(kind: Any, **settings: Any) -> Case:
    model = perceptron()
    return model, kind(model.parameters(), **settings), loss_of


def compiled() -> Case:
    """Its parameters have other names than the model's."""
    model = torch.compile(perceptron(), backend="eager")
    return model, sgd(model), loss_of


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 30), nn.Linear(30, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(words))


def tied() -> Case:
    torch.manual_seed(0)
    model = Tied()

    def loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
        return F.cross_entropy(model(torch.tensor([step, rank, 3])), torch.tensor([1, 2, 3]))

    return model, sgd(model), loss


def convolutions() -> Case:
    """Without a bias: normalisation takes it out again, and its gradient is rounding alone."""
    torch.manual_seed(0)
    first = nn.Conv2d(3, 16, 3, bias=False)
    layers = nn.Sequential(first, nn.BatchNorm2d(16), nn.Flatten(), nn.Linear(16 * 36, 10))
    model = layers.to(memory_format=torch.channels_last)

    def loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(10 * step + rank)
        return model(torch.randn(4, 3, 8, 8, generator=generator)).square().mean()

    return model, sgd(model), loss


def reparametrised() -> Case:
    torch.manual_seed(0)
    first = nn.utils.parametrizations.weight_norm(nn.Linear(60, 20))
    model = nn.Sequential(first, nn.ReLU(), nn.Linear(20, 10))
    return model, sgd(model), loss_of


CASES: list[Callable[[], Case]] = [
    lambda: of_kind(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True),
    lambda: of_kind(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1, fused=True),
    lambda: of_kind(torch.optim.SGD, lr=torch.tensor(0.1), momentum=0.9),
    lambda: of_kind(torch.optim.AdamW, lr=0.01, betas=(0.0, 0.99), fused=True),
    lambda: of_kind(torch.optim.AdamW, lr=torch.tensor(0.01), betas=(0.0, 0.99)),
    lambda: of_kind(torch.optim.RMSprop, lr=0.01, momentum=0.5),
    compiled,
    tied,
    convolutions,
    reparametrised,
]


@on_ranks
def test_all_of_them_train_and_end_alike(hvd: Any) -> None:
    def drop_in(optimizer: Any, model: nn.Module, compression: Any) -> Any:
        named = model.named_parameters()
        return hvd.DistributedOptimizer(optimizer, named_parameters=named, compression=compression)

    def own(optimizer: Any, model: nn.Module, compression: Any) -> Any:
        return gradsieve_hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression)

    for make in CASES:
        for distribute in (drop_in, own):
            model, plain, loss = make()
            before = weights(model)
            optimizer = distribute(plain, model, laplace(check_weights_every=2))
            for step in range(4):
                optimizer.zero_grad()
                loss(model, step, hvd.rank()).backward()
                optimizer.step()
            assert_equal_on_all_ranks(hvd, weights(model))
            assert all(not torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))


@on_ranks
def test_several_models_with_the_same_names_are_under_way_at_once(hvd: Any) -> None:
    """With the stock optimizer Horovod refuses two gradients of one name."""
    models = [perceptron(seed) for seed in range(3)]
    optimizers = [
        gradsieve_hvd.DistributedOptimizer(sgd(model), model.named_parameters(), laplace())
        for model in models
    ]
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for model in models:
            loss_of(model, step, hvd.rank()).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert_equal_on_all_ranks(hvd, [weight for model in models for weight in weights(model)])
