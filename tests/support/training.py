"""Small models and training loops that tests on real ranks share."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TIMEOUT = 30.0  # seconds an exchange may take in tests: a hang is a failure


def perceptron(seed: int = 0) -> nn.Sequential:
    """Two weight matrices (1 200 and 200 elements) and two biases."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(60, 20), nn.ReLU(), nn.Linear(20, 10))


class Weights(nn.Module):
    """Three tensors to be compressed, in buckets of their own, and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors = nn.ParameterList(
            nn.Parameter(torch.zeros(shape)) for shape in ((40, 30), (500,), (7,), (60, 20))
        )

    def backward(self, gradients: list[torch.Tensor]) -> None:
        """Give every tensor its gradient, by a backward pass."""
        pairs = zip(self.tensors, gradients, strict=True)
        torch.stack([(tensor * gradient).sum() for tensor, gradient in pairs]).sum().backward()


def steps_of(optimizer: Any, model: nn.Module, gradients: list[list[Tensor]]) -> None:
    """Take a step with each of these gradients, of `Weights`."""
    for each in gradients:
        optimizer.zero_grad()
        model.backward(each)
        optimizer.step()


def random_gradients(steps: int, seed: int, rank: int = 0) -> list[list[Tensor]]:
    """Whole numbers for `Weights`, by step; as each rank's own."""
    generator = torch.Generator().manual_seed(1_000 * seed + rank)
    shapes = [each.shape for each in Weights().tensors]
    return [
        [torch.randint(-64, 65, shape, generator=generator).float() for shape in shapes] for _ in range(steps)
    ]


class Branches(nn.Module):
    """Layers that a pass uses or not, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(20, 20) for _ in range(5))

    def forward(self, inputs: Tensor, order: list[int]) -> Tensor:
        for number in order:
            inputs = self.layers[number](inputs)
        return inputs


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def laplace(**settings: Any) -> Any:
    """The compressor most tests use: 5 %, weights compressed, biases dense."""
    import gradsieve_hvd

    return gradsieve_hvd.Compression.laplace(
        **{"density": 0.05, "min_elements": 100, "timeout_seconds": TIMEOUT, **settings}
    )


def lossless(**settings: Any) -> Any:
    """Everything is sent: training must go as without compression."""
    import gradsieve_hvd

    return gradsieve_hvd.Compression.topk(
        **{"density": 1.0, "min_elements": 100, "timeout_seconds": TIMEOUT, **settings}
    )


def distribute(hvd: Any, model: nn.Module, compression: Any, **options: Any) -> Any:
    optimizer = hvd.DistributedOptimizer(
        sgd(model), named_parameters=model.named_parameters(), compression=compression, **options
    )
    # Only its hooks refer to it, and they go with it: kept for tests that look at backward() alone.
    model.distributed_by = optimizer  # type: ignore[assignment]
    return optimizer


def batch(step: int, rank: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1_000 * step + rank)
    return torch.randn(8, 60, generator=generator).to(dtype), torch.randint(10, (8,), generator=generator)


def loss_of(model: nn.Module, step: int, rank: int) -> Tensor:
    inputs, targets = batch(step, rank, next(model.parameters()).dtype)
    return F.cross_entropy(model(inputs).float(), targets)


def train(
    hvd: Any,
    model: nn.Module,
    optimizer: Any,
    steps: int = 5,
    first: int = 0,
    zero: Callable[[], None] | None = None,
) -> list[Tensor]:
    """Ordinary training; returns copies of the weights at its end."""
    for step in range(first, first + steps):
        (zero or optimizer.zero_grad)()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.step()
    return weights(model)


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def residuals(optimizer: Any) -> dict[str, Tensor]:
    import gradsieve_hvd

    return {
        name: layer["feedback"]["residual"]
        for name, layer in gradsieve_hvd.state_dict(optimizer)["layers"].items()
    }


def assert_same(first: list[Tensor], second: list[Tensor], rtol: float = 0.0, atol: float = 0.0) -> None:
    torch.testing.assert_close(first, second, rtol=rtol, atol=atol, equal_nan=True)


def assert_equal_on_all_ranks(hvd: Any, tensors: list[Tensor]) -> None:
    """Every rank holds the same bits."""
    for tensor in tensors:
        everyone = hvd.allgather(tensor.float().reshape(1, -1))
        assert bool((everyone == everyone[0]).all()), (
            f"ranks differ in a tensor of shape {tuple(tensor.shape)}"
        )


def end_together(hvd: Any) -> None:
    """End a rank whose Horovod is out of step, and so cannot be shut down, once all ranks have come here.

    They have their program, and no other, in one folder.
    """
    folder = Path(sys.argv[0]).parent
    (folder / f"came-{hvd.rank()}").touch()
    while len([*folder.glob("came-*")]) < hvd.size():
        time.sleep(0.05)
    os._exit(0)
