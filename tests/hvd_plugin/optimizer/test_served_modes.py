"""Training by a parameter server in the ranks: modes "bsp", "asp", "ssp", "dssp" and "dasp"."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from real_ranks import on_ranks
from thread_ranks import ThreadRank, on_thread_ranks
from torch import nn
from training import assert_equal_on_all_ranks, laplace, loss_of, perceptron, weights

import gradsieve_hvd
from gradsieve import MomentumCorrection
from gradsieve.errors import ConfigurationError, ExchangeError, NonFiniteGradient, PayloadError, RankMismatch

MODES = ("bsp", "asp", "ssp", "dssp", "dasp")
STEPS = 6


def step(rank: ThreadRank, number: int) -> None:
    rank.optimizer.zero_grad()
    loss_of(rank.model, number, rank.rank).backward()
    rank.optimizer.step(samples=4)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


@pytest.mark.parametrize("kind", [momentum, adamw])
@pytest.mark.parametrize("ranks", [1, 3])
def test_bsp_is_training_with_the_mean_gradient(kind: Any, ranks: int) -> None:
    alone = perceptron()
    optimizer = kind(alone)

    def train(rank: ThreadRank) -> list[torch.Tensor]:
        for number in range(STEPS):
            step(rank, number)
        return weights(rank.model)

    trained = on_thread_ranks(ranks, train, mode="bsp", exchange="dense", optimizer=kind)
    for number in range(STEPS):
        optimizer.zero_grad()
        (sum(loss_of(alone, number, rank) for rank in range(ranks)) / ranks).backward()
        optimizer.step()
    for each in trained:
        # The mean of gradients is rounded otherwise than the gradient of the mean.
        torch.testing.assert_close(each, weights(alone), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("exchange", ["dense", "allgather"])
@pytest.mark.parametrize("mode", MODES)
def test_ranks_that_end_at_different_steps_have_the_last_weights_together(mode: str, exchange: str) -> None:
    def train(rank: ThreadRank) -> Any:
        for number in range(STEPS - rank.rank):
            step(rank, number)
        rank.optimizer.finish()
        rank.optimizer.finish()
        return rank.optimizer.version, rank.optimizer.samples_seen, weights(rank.model)

    original = perceptron()
    ends = on_thread_ranks(3, train, model=original, mode=mode, exchange=exchange)
    for version, samples, model in ends:
        assert version == ends[0][0]
        assert samples == 4 * sum(STEPS - rank for rank in range(3))
        assert all(map(torch.equal, model, ends[0][2]))
    assert not torch.equal(ends[0][2][0], original[0].weight)


@pytest.mark.parametrize("mode", MODES)
def test_no_gradient_is_lost(mode: str) -> None:
    model = nn.Linear(40, 30, bias=False)
    given = torch.zeros(3, dtype=torch.float64)

    def train(rank: ThreadRank) -> Any:
        generator = torch.Generator().manual_seed(rank.rank)
        for _ in range(STEPS):
            gradient = torch.randint(-9, 10, (30, 40), generator=generator).float()
            given[rank.rank] += gradient.sum(dtype=torch.float64)
            rank.model.weight.grad = gradient
            rank.optimizer.step()
        rank.optimizer.finish()
        (layer,) = rank.optimizer.training.gradients.state_dict().values()
        residual = float(layer["feedback"]["residual"].sum(dtype=torch.float64))
        return rank.optimizer.training.ledger, residual

    ends = on_thread_ranks(3, train, model=model, mode=mode)
    waiting = sum(residual for _, residual in ends)
    ledgers = [ledger for ledger, _ in ends]
    arrived = sum(each.given for each in ledgers)
    assert arrived + waiting == given.sum()
    became = sum(each.applied + each.gated + each.damped + each.discarded for each in ledgers)
    # DASP's weights, such as 0.8, round.
    assert became == (pytest.approx(arrived, rel=1e-6, abs=1e-3) if mode == "dasp" else arrived)


def test_what_a_rank_waits_for_others_is_told_apart_from_what_an_answer_takes() -> None:
    late_seconds = 0.2

    def train(rank: ThreadRank) -> Any:
        for number in range(STEPS):
            if rank.rank == 1:
                time.sleep(late_seconds)
            step(rank, number)
        return rank.optimizer.stats()

    punctual, late = on_thread_ranks(2, train, mode="bsp", exchange="dense")
    assert (STEPS - 1) * late_seconds < punctual.held_seconds < punctual.waiting_seconds
    assert late.held_seconds < punctual.held_seconds - (STEPS - 2) * late_seconds


def test_the_learning_rate_follows_rank_0() -> None:
    def train(rank: ThreadRank) -> float:
        rank.optimizer.param_groups[0]["lr"] = 0.0 if rank.rank == 0 else 1.0
        before = weights(rank.model)
        step(rank, 0)
        return float(sum((a - b).abs().sum() for a, b in zip(before, weights(rank.model), strict=True)))

    assert on_thread_ranks(2, train, mode="bsp", exchange="dense") == [0.0, 0.0]


def test_the_optimizers_state_is_taken_over_and_not_given_out_of_date() -> None:
    alone = perceptron()
    trained = momentum(alone)
    loss_of(alone, 0, 0).backward()
    trained.step()
    saved = copy.deepcopy(trained.state_dict())
    expected = copy.deepcopy(alone)
    optimizer = momentum(expected)
    optimizer.load_state_dict(copy.deepcopy(saved))
    optimizer.zero_grad()
    loss_of(expected, 1, 0).backward()
    optimizer.step()

    def train(rank: ThreadRank) -> list[torch.Tensor]:
        rank.optimizer.load_state_dict(saved)
        rank.optimizer.zero_grad()
        loss_of(rank.model, 1, 0).backward()
        rank.optimizer.step()
        with pytest.raises(ConfigurationError, match="spread over"):
            rank.optimizer.state_dict()
        return weights(rank.model)

    for model in on_thread_ranks(2, train, model=alone, optimizer=momentum, mode="bsp", exchange="dense"):
        torch.testing.assert_close(model, weights(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [momentum, adamw])
def test_a_checkpoint_within_consistent_goes_on_where_training_was(kind: Any) -> None:
    def train(rank: ThreadRank) -> Any:
        for number in range(3):
            step(rank, number)
        with rank.optimizer.consistent(state=True):
            saved = copy.deepcopy((rank.model.state_dict(), rank.optimizer.state_dict()))
        with pytest.raises(ConfigurationError, match="spread over"):
            rank.optimizer.state_dict()
        step(rank, 3)
        return saved, weights(rank.model)

    def go_on(rank: ThreadRank) -> list[torch.Tensor]:
        rank.model.load_state_dict(saved[0])
        rank.optimizer.load_state_dict(copy.deepcopy(saved[1]))
        step(rank, 3)
        return weights(rank.model)

    asked = {"mode": "bsp", "exchange": "dense", "optimizer": kind}
    (saved, expected), _ = on_thread_ranks(2, train, **asked)
    for again in on_thread_ranks(2, go_on, **asked):
        assert all(map(torch.equal, again, expected))


def test_within_consistent_a_rank_has_the_newest_weights_and_its_own_again_afterwards() -> None:
    meets = threading.Barrier(2)

    def train(rank: ThreadRank) -> None:
        step(rank, 0)
        meets.wait()
        own = weights(rank.model)
        if rank.rank == 0:
            for number in range(1, 4):
                step(rank, number)
            newest = weights(rank.model)
        else:
            newest = own
        meets.wait()
        with rank.optimizer.consistent() as version:
            assert version == 5  # asp: each push makes one
            if rank.rank == 0:
                assert all(map(torch.equal, weights(rank.model), newest))
            else:
                assert not torch.equal(weights(rank.model)[0], own[0])
        meets.wait()
        if rank.rank == 1:
            assert all(map(torch.equal, weights(rank.model), own))

    on_thread_ranks(2, train, mode="asp", exchange="dense")


@pytest.mark.parametrize("mode", ["asp", "dasp"])
def test_within_consistent_weights_are_to_look_at_and_all_ranks_end_alike(mode: str) -> None:
    """Its end gives a rank its own weights back, which would undo a step, or the last version."""

    def train(rank: ThreadRank) -> Any:
        for number in range(3 + 3 * rank.rank):
            step(rank, number)
        with rank.optimizer.consistent() as version:
            seen = weights(rank.model)
            with pytest.raises(ConfigurationError, match=r"step\(\) within .* after the with block"):
                step(rank, 50)
            with pytest.raises(ConfigurationError, match=r"finish\(\) within"):
                rank.optimizer.finish()
            with rank.optimizer.consistent() as inner:  # as an evaluation within a checkpoint
                assert inner == version
            with rank.optimizer.consistent(state=True) as newest:  # as a commit within an evaluation
                assert newest >= version
                rank.optimizer.state_dict()
            assert all(map(torch.equal, weights(rank.model), seen))
            with pytest.raises(ConfigurationError, match=r"finish\(\) within"):
                rank.optimizer.finish()
        rank.optimizer.finish()
        return rank.optimizer.version, weights(rank.model)

    first, second = on_thread_ranks(2, train, mode=mode)
    assert first[0] == second[0]
    assert all(map(torch.equal, first[1], second[1]))


def test_a_state_collected_outside_is_there_within() -> None:
    def train(rank: ThreadRank) -> None:
        step(rank, 0)
        with rank.optimizer.consistent(state=True), rank.optimizer.consistent(state=True):
            assert rank.optimizer.state_dict()["state"]
        with pytest.raises(ConfigurationError, match=r"state_dict\(\) after the first step"):
            rank.optimizer.state_dict()
        rank.optimizer.finish()

    on_thread_ranks(2, train, mode="asp", optimizer=momentum)


def test_a_loop_of_horovod_that_clips_needs_no_change() -> None:
    def train(rank: ThreadRank) -> str:
        rank.optimizer.zero_grad()
        loss_of(rank.model, 0, rank.rank).backward()
        rank.optimizer.synchronize()
        own = rank.gradients()
        torch.nn.utils.clip_grad_norm_(rank.model.parameters(), 1e3)
        assert all(map(torch.equal, rank.gradients(), own))
        with rank.optimizer.skip_synchronize():
            rank.optimizer.step()
        with pytest.raises(ConfigurationError, match=r"call optimizer\.finish\(\)"):
            rank.optimizer.join()
        rank.optimizer.finish()
        return str(rank.optimizer.explain())

    assert all("mode='asp', a parameter server" in said for said in on_thread_ranks(2, train, mode="asp"))


def test_groups_that_a_server_keeps_are_not_taken_out() -> None:
    def grouped(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": layer.parameters()} for layer in (model[0], model[2])], lr=0.1)

    def train(rank: ThreadRank) -> None:
        step(rank, 0)
        kept = rank.optimizer.param_groups.pop()
        with pytest.raises(ConfigurationError, match="has 1 groups, and had 2 when training began"):
            step(rank, 1)
        rank.optimizer.param_groups.append(kept)
        step(rank, 1)
        rank.optimizer.finish()

    on_thread_ranks(2, train, mode="asp", optimizer=grouped)


@pytest.mark.parametrize("mode", MODES)
def test_nan_on_one_rank_ends_training_on_all_and_changes_no_weight(mode: str) -> None:
    def train(rank: ThreadRank) -> str:
        with pytest.raises(NonFiniteGradient, match=r"'0\.weight' on rank 1") as caught:  # noqa: PT012
            for number in range(500):
                before = weights(rank.model)
                if rank.rank == 1 and number == 1:
                    rank.model[0].weight.register_hook(lambda gradient: gradient * float("nan"))
                step(rank, number)
        assert all(map(torch.equal, weights(rank.model), before))
        with pytest.raises(NonFiniteGradient):
            rank.optimizer.finish()
        return str(caught.value)

    assert len(set(on_thread_ranks(3, train, mode=mode, exchange="dense"))) == 1


def test_a_damaged_letter_ends_training_on_all() -> None:
    def train(rank: ThreadRank) -> None:
        step(rank, 0)
        if rank.rank == 1:
            mail = rank.optimizer.training._worker._server._mail
            post = mail.post

            def damaged(letter: torch.Tensor, to: int) -> None:
                letter = letter.clone()
                letter[-1] ^= 1
                post(letter, to)

            mail.post = damaged
        with pytest.raises((PayloadError, ExchangeError)):  # noqa: PT012
            for number in range(1, 50):
                step(rank, number)

    on_thread_ranks(2, train, mode="bsp", exchange="dense")


def test_a_rank_that_fails_between_steps_is_an_error_on_all() -> None:
    def train(rank: ThreadRank) -> None:
        step(rank, 0)
        if rank.rank == 1:
            raise ValueError("of this rank")
        with pytest.raises(ExchangeError, match="rank 1 has failed"):  # noqa: PT012
            for number in range(1, 50):
                step(rank, number)

    with pytest.raises(ValueError, match="of this rank"):
        on_thread_ranks(2, train, mode="bsp", exchange="dense")


def test_a_rank_that_stays_away_is_noticed_in_time() -> None:
    done = threading.Event()

    def train(rank: ThreadRank) -> None:
        step(rank, 0)
        if rank.rank == 1:
            done.wait(30)
            return
        with pytest.raises(ExchangeError, match="nothing was heard for 1 s"):
            step(rank, 1)
        done.set()

    on_thread_ranks(2, train, mode="bsp", exchange="dense", compression=laplace(timeout_seconds=1.0))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        pytest.param(lambda rank: {"mode": ("asp", "dasp")[rank]}, 'mode is "asp" on rank 0', id="mode"),
        pytest.param(
            lambda rank: {"mode": "asp", "exchange": ("dense", "allgather")[rank]},
            r'exchange is "dense" on rank 0',
            id="exchange",
        ),
    ],
)
def test_ranks_with_other_settings_are_told_so(settings: Any, says: str) -> None:
    from gradsieve_hvd.transport.threads import run_ranks

    def train(transport: Any) -> None:
        model = perceptron()
        optimizer = gradsieve_hvd.DistributedOptimizer(
            momentum(model), model.named_parameters(), transport=transport, **settings(transport.rank)
        )
        loss_of(model, 0, transport.rank).backward()
        with pytest.raises(RankMismatch, match=says):
            optimizer.step()

    run_ranks(2, train, 20)


def test_ranks_that_begin_with_other_weights_are_told_so() -> None:
    def train(rank: ThreadRank) -> None:
        with torch.no_grad():
            rank.model[0].weight[0, 0] += rank.rank
        with pytest.raises(RankMismatch, match=r"ranks 1 begin with other weights"):
            step(rank, 0)

    on_thread_ranks(2, train, mode="asp")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mode": "dasb"}, "known are"),
        ({"exchange": "ring"}, "exchange"),
        ({"backward_passes_per_step": 2}, "backward_passes_per_step"),
        ({"op": "sum"}, "op"),
        ({"staleness": 3}, "staleness=3 is not known"),
        ({"compression": gradsieve_hvd.Compression.topk(clip_norm=1.0)}, "clip_norm"),
        ({"compression": gradsieve_hvd.Compression.topk(momentum=MomentumCorrection())}, "momentum"),
    ],
)
def test_what_these_modes_do_not_do_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        on_thread_ranks(1, lambda rank: None, **{"mode": "dasp", **settings})


@on_ranks
def test_real_ranks_end_together_and_are_told_of_nan(hvd: Any) -> None:
    if hvd.mpi_enabled():
        from gradsieve_hvd.transport.mpi import MpiTransport

        train_together_and_meet_nan(hvd, MpiTransport)
        return
    from gloo_group import gloo

    from gradsieve_hvd.transport.torch_distributed import TorchDistributedTransport

    with pytest.raises(ConfigurationError, match="messages to single ranks"):
        made(hvd, perceptron(), None, "dasp")
    with gloo(hvd):
        train_together_and_meet_nan(hvd, TorchDistributedTransport)


def train_together_and_meet_nan(hvd: Any, new_transport: Callable[[], Any]) -> None:
    for mode in MODES:
        model = perceptron()
        optimizer = made(hvd, model, new_transport(), mode)
        for number in range(STEPS - hvd.rank()):
            optimizer.zero_grad()
            loss_of(model, number, hvd.rank()).backward()
            optimizer.step()
        optimizer.finish()
        assert_equal_on_all_ranks(hvd, weights(model))
    optimizer = made(hvd, model, new_transport(), "asp")
    with pytest.raises(NonFiniteGradient, match=r"'0\.bias' on rank 1"):  # noqa: PT012
        for number in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, number, hvd.rank()).backward()
            if hvd.rank() == 1 and number == 2:
                model[0].bias.grad[3] = float("inf")
            optimizer.step()
        optimizer.finish()
    optimizer.training._server.join()


def made(hvd: Any, model: nn.Module, transport: Any, mode: str) -> Any:
    keep = [hvd.size() - 1] if mode == "ssp" else None
    return gradsieve_hvd.DistributedOptimizer(
        adamw(model), model.named_parameters(), laplace(), mode=mode, transport=transport, server_ranks=keep
    )


class WithEmpty(nn.Module):
    """Has parameters without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.none, self.rows = nn.Parameter(torch.zeros(0)), nn.Parameter(torch.zeros(0, 4))
        self.inner = perceptron()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(inputs) + self.none.sum() + self.rows.sum()


@pytest.mark.parametrize("exchange", ["dense", "allgather"])
@pytest.mark.parametrize("mode", MODES)
def test_parameters_may_have_no_element(mode: str, exchange: str) -> None:
    def train(rank: ThreadRank) -> list[torch.Tensor]:
        for number in range(3):
            step(rank, number)
        rank.optimizer.finish()
        return weights(rank.model)

    first, second = on_thread_ranks(2, train, mode=mode, exchange=exchange, model=WithEmpty())
    torch.testing.assert_close(first, second, rtol=0, atol=0)
