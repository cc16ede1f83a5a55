"""With density 1 the drop-in must train as Horovod does without compression, in every way Horovod can be
used.

Tolerance: Horovod sums in an order of its own choice, so on 4 ranks the last bits of a sum may differ; on 2
ranks none do.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from real_ranks import on_ranks
from torch import nn
from training import (
    assert_equal_on_all_ranks,
    assert_same,
    distribute,
    loss_of,
    lossless,
    perceptron,
    train,
    weights,
)

ROUNDING = {"rtol": 1e-5, "atol": 1e-6}


def both(hvd: Any, **options: Any) -> None:
    """Train with plain Horovod and with the drop-in, with the same options."""
    plain, ours = perceptron(), perceptron()
    expected = train(hvd, plain, distribute(hvd, plain, hvd.Compression.none, **options))
    actual = train(hvd, ours, distribute(hvd, ours, lossless(), **options))
    assert_same(actual, expected, **(ROUNDING if hvd.size() > 2 else {}))
    assert_equal_on_all_ranks(hvd, actual)


@on_ranks
def test_density_one_trains_like_dense(hvd: Any) -> None:
    both(hvd)


@on_ranks
def test_groups(hvd: Any) -> None:
    both(hvd, groups=2)


@on_ranks
def test_groups_given_as_lists_of_parameters(hvd: Any) -> None:
    plain, ours = perceptron(), perceptron()
    optimizers = [
        distribute(hvd, model, compression, groups=[list(model[0].parameters())])
        for model, compression in ((plain, hvd.Compression.none), (ours, lossless()))
    ]
    assert_same(train(hvd, ours, optimizers[1]), train(hvd, plain, optimizers[0]), **ROUNDING)


@on_ranks
def test_the_sum_instead_of_the_average(hvd: Any) -> None:
    both(hvd, op=hvd.Sum)


@on_ranks
def test_predivided_average(hvd: Any) -> None:
    plain, ours = perceptron(), perceptron()
    expected = train(hvd, plain, distribute(hvd, plain, hvd.Compression.none, gradient_predivide_factor=2.0))
    assert_same(
        train(hvd, ours, distribute(hvd, ours, lossless(), gradient_predivide_factor=2.0)),
        expected,
        **ROUNDING,
    )


@on_ranks
def test_several_backward_passes_per_step(hvd: Any) -> None:
    results = []
    for compression in (hvd.Compression.none, lossless()):
        model = perceptron()
        optimizer = distribute(hvd, model, compression, backward_passes_per_step=3)
        for step in range(3):
            optimizer.zero_grad()
            for part in range(3):
                (loss_of(model, 3 * step + part, hvd.rank()) / 3).backward()
            optimizer.step()
        results.append(weights(model))
    assert_same(results[1], results[0], **ROUNDING)


@on_ranks
def test_fewer_backward_passes_than_announced(hvd: Any) -> None:
    results = []
    for compression in (hvd.Compression.none, lossless()):
        model = perceptron()
        optimizer = distribute(hvd, model, compression, backward_passes_per_step=2)
        train(hvd, model, optimizer, steps=3)
        results.append(weights(model))
    assert_same(results[1], results[0], **ROUNDING)


@on_ranks
def test_gradients_set_to_none(hvd: Any) -> None:
    plain, ours = perceptron(), perceptron()
    first, second = distribute(hvd, plain, hvd.Compression.none), distribute(hvd, ours, lossless())
    expected = train(hvd, plain, first, zero=lambda: plain.zero_grad(set_to_none=True))
    assert_same(train(hvd, ours, second, zero=lambda: ours.zero_grad(set_to_none=True)), expected, **ROUNDING)


@on_ranks
def test_the_optimizers_own_zero_grad_sets_to_none_and_takes_no_argument_as_in_plain_horovod(
    hvd: Any,
) -> None:
    for compression in (hvd.Compression.none, lossless()):
        model = perceptron()
        optimizer = distribute(hvd, model, compression)
        train(hvd, model, optimizer, steps=1)
        with pytest.raises(TypeError, match="set_to_none"):
            optimizer.zero_grad(set_to_none=True)
        optimizer.zero_grad()
        assert all(parameter.grad is None for parameter in model.parameters())


@on_ranks
def test_gradients_zeroed_in_place(hvd: Any) -> None:
    plain, ours = perceptron(), perceptron()
    first, second = distribute(hvd, plain, hvd.Compression.none), distribute(hvd, ours, lossless())
    expected = train(hvd, plain, first, zero=lambda: plain.zero_grad(set_to_none=False))
    assert_same(
        train(hvd, ours, second, zero=lambda: ours.zero_grad(set_to_none=False)), expected, **ROUNDING
    )


class PartlyUsed(nn.Module):
    """One of its layers takes no part in the loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used, self.unused = nn.Linear(60, 10), nn.Linear(60, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.used(inputs)


@on_ranks
def test_parameters_without_a_gradient(hvd: Any) -> None:
    plain, ours = PartlyUsed(), PartlyUsed()
    expected = train(hvd, plain, distribute(hvd, plain, hvd.Compression.none))
    assert_same(train(hvd, ours, distribute(hvd, ours, lossless())), expected, **ROUNDING)


class RankDependent(nn.Module):
    """Rank 0 uses one branch, the others the other: without groups Horovod fills the missing gradients with
    zeros."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rank = rank
        self.left, self.right = nn.Linear(60, 10), nn.Linear(60, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.left(inputs) if self.rank == 0 else self.right(inputs)


@on_ranks
def test_different_parameters_without_a_gradient_on_different_ranks(hvd: Any) -> None:
    plain, ours = RankDependent(hvd.rank()), RankDependent(hvd.rank())
    expected = train(hvd, plain, distribute(hvd, plain, hvd.Compression.none))
    assert_same(train(hvd, ours, distribute(hvd, ours, lossless())), expected, **ROUNDING)


@on_ranks
def test_half_precision_parameters(hvd: Any) -> None:
    plain, ours = perceptron().half(), perceptron().half()
    expected = train(hvd, plain, distribute(hvd, plain, hvd.Compression.none))
    actual = train(hvd, ours, distribute(hvd, ours, lossless()))
    assert all(weight.dtype == torch.float16 for weight in actual)
    # Horovod sums in fp16, gradsieve in fp32: they differ by fp16's rounding, a few of its 2**-11 relative
    # steps.
    assert_same(actual, expected, rtol=1e-2, atol=2e-3)
    assert_equal_on_all_ranks(hvd, actual)


@on_ranks
def test_bfloat16_parameters_which_horovod_cannot_reduce(hvd: Any) -> None:
    model = perceptron().bfloat16()
    actual = train(hvd, model, distribute(hvd, model, lossless()))
    reference = perceptron()
    expected = train(hvd, reference, distribute(hvd, reference, hvd.Compression.none))
    assert all(weight.dtype == torch.bfloat16 for weight in actual)
    # bf16 keeps 8 bits; 5 steps of rounding weights and gradients.
    assert_same([weight.float() for weight in actual], expected, rtol=5e-2, atol=2e-2)
    assert_equal_on_all_ranks(hvd, actual)


@on_ranks
def test_channels_last_convolutions_keep_their_memory_format(hvd: Any) -> None:
    """Plain Horovod refuses such gradients ("Tensor is required to be contiguous"), small ones included: it
    trains the usual format here."""
    results = []
    for compression, memory_format in (
        (hvd.Compression.none, torch.contiguous_format),
        (lossless(), torch.channels_last),
        (lossless(min_elements=10_000), torch.channels_last),
    ):
        torch.manual_seed(0)
        model = nn.Conv2d(6, 8, 3).to(memory_format=memory_format)
        optimizer = distribute(hvd, model, compression)
        for step in range(3):
            optimizer.zero_grad()
            inputs = torch.randn(2, 6, 8, 8, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
            model(inputs.to(memory_format=memory_format)).square().mean().backward()
            assert model.weight.grad is not None
            strides = model.weight.grad.stride()
            optimizer.step()
            assert model.weight.grad.stride() == strides
            assert model.weight.grad.is_contiguous(memory_format=memory_format)
        results.append(weights(model))
    assert_same(results[2], results[0], **ROUNDING)
    assert_same(results[1], results[0], **ROUNDING)


@on_ranks
def test_parameters_of_other_types_stay_dense(hvd: Any) -> None:
    plain, ours = perceptron().double(), perceptron().double()
    expected = train(hvd, plain, distribute(hvd, plain, hvd.Compression.none))
    assert_same(train(hvd, ours, distribute(hvd, ours, lossless())), expected, **ROUNDING)


@on_ranks
def test_sparse_embedding_gradients_go_their_own_way(hvd: Any) -> None:
    results = []
    for compression in (hvd.Compression.none, lossless()):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Flatten(), nn.Linear(32, 10))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            named_parameters=model.named_parameters(),
            compression=compression,
        )
        for step in range(3):
            optimizer.zero_grad()
            codes = torch.randint(50, (4, 4), generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
            model(codes).square().mean().backward()
            optimizer.step()
        results.append(weights(model))
    assert_same(results[1], results[0], **ROUNDING)


@on_ranks
def test_process_sets_train_by_themselves(hvd: Any) -> None:
    even, odd = (hvd.add_process_set(list(range(first, hvd.size(), 2))) for first in (0, 1))
    try:
        mine = even if hvd.rank() % 2 == 0 else odd
        plain, ours = perceptron(hvd.rank() % 2), perceptron(hvd.rank() % 2)
        expected = train(hvd, plain, distribute(hvd, plain, hvd.Compression.none, process_set=mine))
        assert_same(train(hvd, ours, distribute(hvd, ours, lossless(), process_set=mine)), expected)
    finally:
        hvd.barrier()
        hvd.remove_process_set(even)
        hvd.remove_process_set(odd)


@on_ranks
def test_parameters_added_later_are_averaged_too(hvd: Any) -> None:
    """Stock Horovod leaves them different on every rank; the drop-in makes Horovod reduce them."""
    for groups in (None, 1):
        model = perceptron()
        optimizer = distribute(hvd, model, lossless(), groups=groups)
        train(hvd, model, optimizer, steps=1)
        extra = nn.Parameter(torch.ones(200))
        optimizer.add_param_group({"params": [extra]})
        for step in range(3):
            optimizer.zero_grad()
            (loss_of(model, step, hvd.rank()) + (extra * hvd.rank()).sum()).backward()
            optimizer.step()
            mean_gradient = sum(range(hvd.size())) / hvd.size()
            assert extra.grad is not None
            torch.testing.assert_close(extra.grad, torch.full((200,), mean_gradient))
        assert_equal_on_all_ranks(hvd, [extra.detach(), *weights(model)])


@on_ranks
def test_two_optimizers_share_one_compressor(hvd: Any) -> None:
    """As in a GAN: both step in turn, each with residuals of its own."""
    compression = lossless()
    ours, plain = [perceptron(0), perceptron(1)], [perceptron(0), perceptron(1)]
    our_optimizers = [distribute(hvd, model, compression) for model in ours]
    plain_optimizers = [distribute(hvd, model, hvd.Compression.none) for model in plain]
    for step in range(4):
        for models, optimizers in ((ours, our_optimizers), (plain, plain_optimizers)):
            train(hvd, models[step % 2], optimizers[step % 2], steps=1, first=step)
    for ours_one, plain_one in zip(ours, plain, strict=True):
        assert_same(weights(ours_one), weights(plain_one), **ROUNDING)


@on_ranks
def test_clipping_between_synchronize_and_step(hvd: Any) -> None:
    results = []
    for compression in (hvd.Compression.none, lossless()):
        model = perceptron()
        optimizer = distribute(hvd, model, compression)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
        results.append(weights(model))
    assert_same(results[1], results[0], **ROUNDING)
