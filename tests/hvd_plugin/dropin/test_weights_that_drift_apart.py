"""Ranks whose weights differ, if only by a bit, are told so."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from real_ranks import on_ranks, run_alone
from torch import Tensor, nn
from training import (
    assert_equal_on_all_ranks,
    distribute,
    laplace,
    loss_of,
    perceptron,
    train,
    weights,
)

from gradsieve_hvd import RankMismatch
from gradsieve_hvd.engine.weights_check import describe_differences
from gradsieve_hvd.optimizers import reducer_of
from gradsieve_hvd.transport.horovod_allgather import HorovodMessages


def flip_lowest_bit(weight: Tensor) -> None:
    with torch.no_grad():
        weight.view(torch.uint8).view(-1)[0] ^= 1


@contextmanager
def messages() -> Iterator[list[int]]:
    """Sizes of the messages that the check sends."""
    sent: list[int] = []
    tell = HorovodMessages.tell

    def counted(self: HorovodMessages, content: bytes, name: str) -> Any:
        if name.startswith("weights."):
            sent.append(len(content))
        return tell(self, content, name)

    HorovodMessages.tell = counted  # type: ignore[method-assign]
    try:
        yield sent
    finally:
        HorovodMessages.tell = tell  # type: ignore[method-assign]


@on_ranks
def test_one_bit_of_one_rank(hvd: Any) -> None:
    last = hvd.size() - 1
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        model = perceptron().to(dtype)
        optimizer = distribute(hvd, model, laplace(check_weights_every=2))
        train(hvd, model, optimizer, steps=3)
        if hvd.rank() == last:
            flip_lowest_bit(model[2].weight)
        with messages() as sent, pytest.raises(RankMismatch) as error:
            train(hvd, model, optimizer, steps=2, first=3)
        assert re.search(rf"after step 4: weights differ .*: '2\.weight' on rank {last}\.", str(error.value))
        assert sent[0] == 16
        assert len(sent) == 2, "the names are told once it is known that something differs"
        model.load_state_dict(hvd.broadcast_object(model.state_dict()))  # as broadcast_parameters, bf16 too
        train(hvd, model, optimizer, steps=4, first=5)
        assert_equal_on_all_ranks(hvd, weights(model))


@on_ranks
def test_equal_ranks_exchange_sixteen_bytes_and_no_more(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace(check_weights_every=20))
    with messages() as sent:
        train(hvd, model, optimizer, steps=9)
        assert sent == []
        train(hvd, model, optimizer, steps=33, first=9)
    assert sent == [16, 16, 16], "after the tenth step, and every twentieth"


@on_ranks
def test_weights_that_were_never_made_equal_are_found_after_ten_steps(hvd: Any) -> None:
    model = perceptron(seed=hvd.rank())
    optimizer = distribute(hvd, model, laplace())
    train(hvd, model, optimizer, steps=10)
    with pytest.raises(RankMismatch, match=r"after step 10: .*'0\.bias' on rank"):
        train(hvd, model, optimizer, steps=1, first=10)


@on_ranks
def test_switched_off_it_says_nothing(hvd: Any) -> None:
    for every in (None, 0):
        model = perceptron(seed=hvd.rank())
        with messages() as sent:
            train(hvd, model, distribute(hvd, model, laplace(check_weights_every=every)), steps=12)
        assert sent == []


@on_ranks
def test_a_step_that_only_one_rank_skips(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace(check_weights_every=2))

    def go(step: int, skip: bool) -> None:
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.synchronize()
        if not skip:
            with optimizer.skip_synchronize():
                optimizer.step()

    go(0, skip=False)
    go(1, skip=hvd.rank() == 1)
    with pytest.raises(RankMismatch, match=r"different numbers of steps: 2, 1\b"):
        go(2, skip=False)


@on_ranks
def test_steps_that_all_ranks_skip_and_new_beginnings_are_no_difference(hvd: Any) -> None:
    model = perceptron()
    optimizer = distribute(hvd, model, laplace(check_weights_every=2))
    for step in range(8):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.synchronize()
        if step % 3:
            with optimizer.skip_synchronize():
                optimizer.step()
        if step == 5:
            reducer_of(optimizer).restart()
    assert_equal_on_all_ranks(hvd, weights(model))


@on_ranks
def test_what_the_optimizer_does_not_own_may_differ(hvd: Any) -> None:
    model = nn.ModuleDict({"shared": perceptron(), "frozen": perceptron(), "own": perceptron()})
    for parameter in (*model["frozen"].parameters(), *model["own"].parameters()):
        with torch.no_grad():
            parameter.add_(hvd.rank())
    model["frozen"].requires_grad_(False)
    named = [(name, p) for name, p in model.named_parameters() if not name.startswith("own")]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([p for _, p in named], lr=0.1),
        named_parameters=named,
        compression=laplace(check_weights_every=1),
    )
    train(hvd, model["shared"], optimizer, steps=3)


@on_ranks
def test_process_sets_and_optimizers_are_checked_by_themselves(hvd: Any) -> None:
    even, odd = (hvd.add_process_set(list(range(first, hvd.size(), 2))) for first in (0, 1))
    try:
        mine = even if hvd.rank() % 2 == 0 else odd
        models = [perceptron(hvd.rank() % 2), perceptron(7)]
        optimizers = [
            distribute(hvd, model, laplace(check_weights_every=1), process_set=mine) for model in models
        ]
        for step in range(3):
            for model, optimizer in zip(models, optimizers, strict=True):
                train(hvd, model, optimizer, steps=1, first=step)
        if mine.size() == 1:
            return
        if mine.rank() == 1:
            flip_lowest_bit(models[1][0].bias)
        train(hvd, models[0], optimizers[0], steps=2, first=3)
        train(hvd, models[1], optimizers[1], steps=1, first=3)
        with pytest.raises(RankMismatch, match=r"'0\.bias' on rank 1\."):
            train(hvd, models[1], optimizers[1], steps=1, first=4)
    finally:
        hvd.barrier()
        hvd.remove_process_set(even)
        hvd.remove_process_set(odd)


@on_ranks
def test_an_embedding_with_sparse_gradients_is_checked_too(hvd: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Flatten(), nn.Linear(32, 10))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        compression=laplace(check_weights_every=1),
    )

    def go(step: int) -> None:
        optimizer.zero_grad()
        codes = torch.randint(50, (4, 4), generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
        model(codes).square().mean().backward()
        optimizer.step()

    go(0)
    if hvd.rank() == 1:
        flip_lowest_bit(model[0].weight)
    go(1)
    with pytest.raises(RankMismatch, match=r"'0\.weight' on rank 1"):
        go(2)


def test_a_training_that_ends_when_a_comparison_is_due_ends_well(tmp_path):
    """Rank 0 takes its time over the hashes, and rank 1 is gone meanwhile."""
    program = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[2] / "support")!r})
import horovod.torch as hvd
from training import distribute, laplace, perceptron, train
from gradsieve_hvd.engine import weights_check
hvd.init()
model = perceptron()
optimizer = distribute(hvd, model, laplace(check_weights_every=4))
train(hvd, model, optimizer, steps=3)
if hvd.rank() == 0:
    hash_quickly = weights_check.bit_hash
    weights_check.bit_hash = lambda tensor: time.sleep(0.5) or hash_quickly(tensor)
train(hvd, model, optimizer, steps=1)
hvd.shutdown()
print("ended well")
"""
    status, output = run_alone(program, 2, tmp_path)
    assert (status, output.count("ended well")) == (0, 2), output


def test_the_ranks_named_are_those_that_differ_from_most():
    a, b = {"x": 1, "y": 2}, {"x": 1, "y": 3}
    assert describe_differences([b, a, a]) == "'y' on rank 0"
    assert describe_differences([a, b]) == "'y' on rank 1"
    assert describe_differences([a, b, b, a]) == "'y' on ranks 1, 2"
    assert describe_differences([a, {"x": 1}]) == "'y' on rank 1"
    many = {f"{i:02}": 0 for i in range(20)}
    assert describe_differences([many, dict.fromkeys(many, 1)]).endswith("'07' on rank 1, 12 more")
    assert describe_differences([a, copy.copy(a)]) == ""


@pytest.mark.parametrize("every", [-1, 2.5, "often", True])
def test_intervals_that_are_none(every):
    with pytest.raises(ValueError, match="check_weights_every"):
        laplace(check_weights_every=every)
