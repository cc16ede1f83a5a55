"""Local steps: what was given is sent, forgotten or waits; all ranks end each round with the same weights."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from committed import folder
from hypothesis import given, settings
from hypothesis import strategies as st
from local_ranks import adamw, local, sparse, train, waiting
from real_ranks import on_ranks
from thread_ranks import ThreadRank, on_thread_ranks
from torch import nn
from training import Weights, assert_equal_on_all_ranks, assert_same, loss_of, perceptron, weights

import gradsieve_hvd
from gradsieve.errors import ConfigurationError, StateError


@settings(max_examples=20, deadline=None)
@given(
    ranks=st.integers(1, 4),
    seed=st.integers(0, 1000),
    density=st.sampled_from([0.01, 0.1, 1.0]),
    decay=st.sampled_from([0.5, 1.0]),
    value_dtype=st.sampled_from(["float32", "int2"]),
    steps=st.lists(st.integers(1, 3), min_size=1, max_size=4),
)
def test_what_was_given_was_sent_or_forgotten_or_waits_bit_for_bit(
    ranks, seed, density, decay, value_dtype, steps
):
    def work(rank: ThreadRank) -> Any:
        generator = torch.Generator().manual_seed(100 * seed + rank.rank)
        everything = [torch.zeros_like(each) for each in rank.model.tensors]
        forgotten = [torch.zeros(each.numel()) for each in rank.model.tensors]
        for taken in steps:
            for total, residual in zip(forgotten, waiting(rank), strict=True):
                total.add_((1 - decay) * residual)
            for _ in range(taken):
                gradients = [
                    torch.randint(-64, 65, each.shape, generator=generator).float() for each in everything
                ]
                for total, gradient in zip(everything, gradients, strict=True):
                    total.add_(gradient)
                rank.optimizer.zero_grad()
                rank.model.backward(gradients)
                rank.optimizer.step()
            rank.optimizer.synchronize()
        sent = [-each.detach() for each in rank.model.tensors]
        return everything, sent, forgotten, waiting(rank)

    results = local(
        ranks,
        work,
        model=Weights(),
        compression=sparse(density, value_dtype=value_dtype),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1.0),
        local_steps=100,
        residual_decay=decay,
        outer_learning_rate=float(ranks),
    )
    sent = results[0][1]
    for tensor, applied in enumerate(sent):
        assert all(torch.equal(applied, other[1][tensor]) for other in results)
        everything = sum(result[0][tensor].view(-1) for result in results)
        forgotten = sum(result[2][tensor] for result in results)
        left = sum(result[3][tensor] for result in results)
        assert torch.equal(applied.view(-1) + forgotten + left, everything)


def test_all_ranks_have_the_same_weights_after_every_round_and_others_within():
    def work(rank: ThreadRank) -> Any:
        return train(rank, 6), train(rank, 2, first=6)

    results = local(3, work)
    for after, within in results[1:]:
        assert_same(after, results[0][0])
        assert not torch.equal(within[0], results[0][1][0])


def test_one_step_with_everything_sent_is_dense_training_up_to_rounding():
    everything = sparse(1.0, value_dtype="float32")
    steps = {"optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1)}
    one = local(2, lambda rank: train(rank, 10), compression=everything, local_steps=1, **steps)
    dense = on_thread_ranks(2, lambda rank: train(rank, 10), exchange="dense", **steps)
    assert_same(one[0], dense[0], rtol=1e-4, atol=1e-6)


def test_a_shorter_round_may_end_by_synchronize_and_again_changes_nothing():
    def work(rank: ThreadRank) -> Any:
        train(rank, 4)
        rank.optimizer.synchronize()
        once, residuals = weights(rank.model), waiting(rank)
        rank.optimizer.synchronize()
        assert_same(weights(rank.model), once)
        assert_same(waiting(rank), residuals)
        train(rank, 3, first=4)
        return once, weights(rank.model), rank.optimizer.stats()

    results = local(3, work)
    assert_same(results[0][0], results[1][0])
    assert_same(results[0][1], results[2][1])
    assert results[0][2].local_steps == 3
    assert results[0][2].step == 7


def test_ranks_may_run_out_of_data_at_different_times():
    def work(rank: ThreadRank) -> Any:
        train(rank, 4 + 3 * rank.rank)
        rank.optimizer.finish()
        return weights(rank.model), rank.optimizer.stats().step

    results = local(3, work)
    assert [step for _, step in results] == [4, 7, 10]
    for ended, _ in results[1:]:
        assert_same(ended, results[0][0])


def test_a_state_between_rounds_goes_on_bit_for_bit():
    def whole(rank: ThreadRank) -> Any:
        return train(rank, 9)

    def interrupted(rank: ThreadRank) -> Any:
        train(rank, 6)
        state = copy.deepcopy(gradsieve_hvd.state_dict(rank.optimizer))
        model, inner = copy.deepcopy(rank.model), copy.deepcopy(rank.optimizer.state_dict())
        train(rank, 2, first=20)  # lost, with what they left within a round
        rank.model.load_state_dict(model.state_dict())
        rank.optimizer.load_state_dict(inner)
        gradsieve_hvd.load_state_dict(rank.optimizer, state)
        return train(rank, 3, first=6)

    for one, other in zip(local(2, whole), local(2, interrupted), strict=True):
        assert_same(one, other)


def test_a_state_within_a_round_is_refused_and_so_is_one_of_gradients():
    def work(rank: ThreadRank) -> None:
        train(rank, 4)
        with pytest.raises(ConfigurationError, match=r"after 1 of 3 local steps.*synchronize\(\)"):
            gradsieve_hvd.state_dict(rank.optimizer)
        rank.optimizer.synchronize()
        state = gradsieve_hvd.state_dict(rank.optimizer)
        with pytest.raises(ConfigurationError, match="not one of mode='local'"):
            gradsieve_hvd.load_state_dict(rank.optimizer, {**state, "mode": None})

    local(2, work)


def test_parameters_are_added_between_rounds_only():
    def work(rank: ThreadRank) -> Any:
        extra = nn.Parameter(torch.ones(300))
        train(rank, 1)
        with pytest.raises(ConfigurationError, match="after 1 of 3 local steps"):
            rank.optimizer.add_param_group({"params": [extra]})
        assert len(rank.optimizer.param_groups) == 1
        rank.optimizer.synchronize()
        rank.optimizer.add_param_group({"params": [extra]})
        for _ in range(3):
            rank.optimizer.zero_grad()
            (extra * (1 + rank.rank)).sum().backward()
            rank.optimizer.step()
        return [extra.detach()]

    first, second = local(2, work)
    assert_same(first, second)
    assert not torch.equal(first[0], torch.ones(300))


def test_half_precision_weights_are_the_same_on_all_ranks():
    model = perceptron().to(torch.bfloat16)
    first, second = local(2, lambda rank: train(rank, 6), model=model)
    assert first[0].dtype == torch.bfloat16
    assert_same(first, second)


class Precise(nn.Module):
    """Double precision beyond single: one that trains, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.trains = nn.Parameter(torch.full((8,), 1.0 + 1e-10, dtype=torch.float64))
        self.frozen = nn.Parameter(torch.full((8,), 1e200, dtype=torch.float64), requires_grad=False)


def test_double_precision_weights_keep_their_bits_and_move_by_what_was_sent():
    def work(rank: ThreadRank) -> Any:
        for _ in range(6):
            rank.optimizer.zero_grad()
            (rank.model.trains * 1e-9).sum().backward()
            rank.optimizer.step()
        rank.optimizer.finish()
        return rank.model.trains.detach(), rank.model.frozen.detach()

    def plain(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1.0)

    everything = sparse(1.0, value_dtype="float32")
    for trained, frozen in local(2, work, model=Precise(), optimizer=plain, compression=everything):
        assert torch.equal(frozen, Precise().frozen)
        moved = trained - Precise().trains.detach()
        torch.testing.assert_close(moved, torch.full_like(moved, -6e-9), rtol=1e-6, atol=0.0)


def test_what_was_sent_and_when_can_be_asked():
    def work(rank: ThreadRank) -> Any:
        train(rank, 7)
        return rank.optimizer.stats(), str(rank.optimizer.explain())

    stats, said = local(2, work)[0]
    assert (stats.rounds, stats.local_steps, stats.step) == (2, 3, 6)
    assert 0 < stats.payload_bytes < stats.total_payload_bytes < stats.dense_bytes
    assert (
        stats.buckets[0].kept < stats.buckets[0].elements == sum(p.numel() for p in perceptron().parameters())
    )
    assert "mode='local', 1 of 3 local steps into round 3" in said


def test_samples_are_seen_when_their_round_is_applied():
    def work(rank: ThreadRank) -> Any:
        sampler = gradsieve_hvd.DynamicSampler(range(80), rank.optimizer, 4)
        seen = []
        for step, batch in enumerate(sampler):
            train(rank, 1, first=step)
            seen.append(rank.optimizer.samples_seen)
            assert len(batch) == 4
        return seen

    first, second = local(2, work)
    assert first == second == [0, 0, 24, 24, 24, 48, 48, 48, 72, 72]


class Training:
    """A training in mode "local" with a sampler and commits; a new process in all but name."""

    def __init__(self, hvd: Any, directory: Path, seed: int = 0) -> None:
        self.hvd, self.model = hvd, perceptron(seed)
        self.optimizer = gradsieve_hvd.DistributedOptimizer(
            adamw(self.model), self.model.named_parameters(), sparse(), mode="local", local_steps=3
        )
        hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
        self.sampler = gradsieve_hvd.DynamicSampler(range(48 * hvd.size()), self.optimizer, 4)
        self.state = gradsieve_hvd.TrainingState(
            self.model, self.optimizer, directory=directory, every=3, sampler=self.sampler
        )

    def train(self, until: int) -> tuple[list[torch.Tensor], list[int]]:
        step, used = self.state.restore(), []
        for batch in self.sampler:
            used += batch
            self.optimizer.zero_grad()
            loss_of(self.model, step, self.hvd.rank()).backward()
            self.optimizer.step()
            step += 1
            if step == until:
                break
            self.state.commit(step)
        return weights(self.model), used


@on_ranks
def test_a_resumed_training_goes_on_bit_for_bit_with_the_samples_that_were_not_used(hvd: Any) -> None:
    with folder(hvd) as directory:
        whole, everything = Training(hvd, directory / "whole").train(12)
        assert_equal_on_all_ranks(hvd, whole)
        _, used = Training(hvd, directory / "parts").train(8)  # the last commit is after 6
        resumed = Training(hvd, directory / "parts", seed=1)
        after, rest = resumed.train(12)
        assert_same(after, whole)
        assert used[: 6 * 4] + rest == everything
        assert resumed.optimizer.samples_seen == 12 * 4 * hvd.size()


@on_ranks
def test_local_steps_end_alike_on_real_ranks_and_a_commit_is_refused_within_a_round(hvd: Any) -> None:
    model = perceptron()
    optimizer = gradsieve_hvd.DistributedOptimizer(
        adamw(model), model.named_parameters(), sparse(), mode="local", local_steps=3
    )
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for step in range(6):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.step()
    assert_equal_on_all_ranks(hvd, weights(model))
    optimizer.step()
    with folder(hvd) as directory:
        state = gradsieve_hvd.TrainingState(model, optimizer, directory=directory)
        with pytest.raises(ConfigurationError, match="after 1 of 3 local steps"):
            gradsieve_hvd.state_dict(optimizer)
        assert state.restore() == 0
        optimizer.step()
        with pytest.raises(StateError, match="after 1 of 3 local steps"):
            state.commit(1)
    optimizer.finish()
    assert_equal_on_all_ranks(hvd, weights(model))
