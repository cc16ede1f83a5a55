"""What a program sets for its own new tensors (default dtype and device) changes nothing of the exchange."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from real_ranks import on_ranks
from torch import nn
from training import TIMEOUT, assert_equal_on_all_ranks, assert_same, distribute, perceptron, weights

import gradsieve
import gradsieve_hvd

MAKERS = ("topk", "group_topk", "laplace", "sampled", "layered", "importance")


def whole_life(hvd: Any, model: nn.Module, maker: str) -> list[torch.Tensor]:
    """Steps with and without a second exchange, clipping, the weights' check, a frozen layer, checkpoints."""
    compression = getattr(gradsieve_hvd.Compression, maker)(
        density=0.05, min_elements=100, timeout_seconds=TIMEOUT, clip_global_norm=0.5
    )
    optimizer = distribute(hvd, model, compression)
    generator = torch.Generator("cpu").manual_seed(hvd.rank())
    for step in range(14):
        optimizer.zero_grad()
        inputs = torch.randn(8, 60, generator=generator, dtype=torch.float32, device="cpu")
        targets = torch.randint(10, (8,), generator=generator, device="cpu")
        gradsieve.cross_entropy(model(inputs), targets).backward()
        if step == 3:
            optimizer.synchronize()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad = parameter.grad * 0.5
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer.step()
        if step == 6:
            next(model.parameters()).requires_grad_(False)
        if step == 9:
            gradsieve_hvd.load_state_dict(optimizer, gradsieve_hvd.state_dict(optimizer))
    return weights(model)


@on_ranks
def test_a_training_is_the_same(hvd: Any) -> None:
    for maker in MAKERS:
        expected = whole_life(hvd, perceptron(), maker)
        assert_equal_on_all_ranks(hvd, expected)
        model = perceptron()
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        try:
            found = whole_life(hvd, model, maker)
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_default_device(None)
        if maker != "importance":  # whose density follows the measured network
            assert_same(found, expected)
