"""Compressed gradients change their path while training goes on: nothing is lost, no rank is left behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_ranks import ThreadRank, on_thread_ranks
from training import Weights, assert_same, laplace, loss_of, lossless, perceptron, sgd, weights

import gradsieve_hvd
from gradsieve_hvd.choice.costs import WorkRates
from gradsieve_hvd.optimizer.path_changes import allowed_paths

PATHS = ("allgather", "ring", "scatter", "dense", "bf16")
RATES = WorkRates(select=1e-9, encode=2e-8, decode=2e-8, add=1e-10, narrow=5e-9, factor=1e-9)


@pytest.fixture(autouse=True)
def no_timing_of_this_machine(monkeypatch):
    monkeypatch.setattr("gradsieve_hvd.optimizer.path_changes.measure_rates", lambda *_: RATES)
    # Orders come round by round, however short rounds are.
    monkeypatch.setattr("gradsieve_hvd.optimizer.path_changes._LEARNING_SHARE", float("inf"))


class Scripted:
    """In place of a `PathChooser`: orders paths as they are listed."""

    def __init__(self, paths: list[str], probe_bytes: int = 0) -> None:
        self._paths, self.probe_bytes, self._rounds = paths, probe_bytes, 0
        self.probes: list[Any] = []

    @property
    def path(self) -> str:
        return self._paths[min(self._rounds, len(self._paths) - 1)]

    def observe(self, seen: Any) -> None:
        self._rounds += 1

    def probed(self, timing: Any) -> None:
        self.probes.append(timing)


def script(rank: ThreadRank, paths: list[str], **how: Any) -> Scripted | None:
    """Have rank 0 order these paths; its own choice would only begin with the first round."""
    scripted = Scripted(paths, **how) if rank.rank == 0 else None
    changes = rank.optimizer.synchronizer.insight.changes
    agree = changes.agree

    def agree_and_follow() -> None:
        agree()
        changes._chooser = scripted

    changes.agree = agree_and_follow
    return scripted


def given_applied_waiting(rank: ThreadRank, paths: list[str], seed: int, frozen_from: int | None) -> Any:
    """Take a step by each path at a learning rate of 1."""
    script(rank, paths)
    given_in_all, used = [torch.zeros_like(tensor) for tensor in rank.model.tensors], []
    for step in range(len(paths) + 2):
        generator = torch.Generator().manual_seed(10_000 * seed + 100 * step + rank.rank)
        gradients = [
            torch.randint(-64, 65, tensor.shape, generator=generator).float() for tensor in rank.model.tensors
        ]
        if step == frozen_from and rank.rank == 0:
            rank.model.tensors[0].requires_grad_(False)
        if not rank.model.tensors[0].requires_grad:
            gradients[0].zero_()
        rank.optimizer.zero_grad()
        for total, gradient in zip(given_in_all, gradients, strict=True):
            total.add_(gradient)
        used.append(rank.optimizer.synchronizer.insight.changes.path)
        rank.model.backward(gradients)
        rank.optimizer.step()
    layers = gradsieve_hvd.state_dict(rank.optimizer)["layers"]
    waiting = {name: layer["feedback"]["residual"] for name, layer in layers.items()}
    return given_in_all, [-tensor.detach() for tensor in rank.model.tensors], waiting, used


@settings(max_examples=25)
@given(
    ranks=st.integers(1, 4),
    seed=st.integers(0, 1000),
    paths=st.lists(st.sampled_from(PATHS), min_size=1, max_size=6),
    density=st.sampled_from([0.01, 0.1, 0.5]),
    frozen_from=st.one_of(st.none(), st.integers(0, 6)),
)
def test_what_was_given_is_applied_or_waits_whatever_paths_it_took(ranks, seed, paths, density, frozen_from):
    results = on_thread_ranks(
        ranks,
        lambda rank: given_applied_waiting(rank, paths, seed, frozen_from),
        model=Weights(),
        compression=gradsieve_hvd.Compression.topk(density, min_elements=100, value_dtype="bfloat16"),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1.0),
        op="sum",
        exchange="auto",
    )
    # ordered after the first round, told with the second
    assert all(result[3] == ["allgather", "allgather", *paths] for result in results)
    applied = results[0][1]
    for tensor in range(4):
        assert all(torch.equal(applied[tensor], other[1][tensor]) for other in results)
        given_in_all = torch.stack([result[0][tensor] for result in results]).sum(0)
        waiting = [result[2].get(f"tensors.{tensor}") for result in results]
        left = sum(each.view(given_in_all.shape) for each in waiting if each is not None)
        # integers, but for what bf16 rounds away of sums; fp32 holds that and what is left of it
        torch.testing.assert_close(applied[tensor] + left, given_in_all, rtol=0, atol=1e-3)


def test_a_step_by_the_dense_path_pays_all_that_waits():
    def work(rank: ThreadRank) -> list[float]:
        script(rank, ["allgather", "allgather", "dense"])
        norms = []
        for step in range(6):
            rank.optimizer.zero_grad()
            loss_of(rank.model, step, rank.rank).backward()
            rank.optimizer.step()
            layers = gradsieve_hvd.state_dict(rank.optimizer)["layers"].values()
            norms.append(sum(float(layer["feedback"]["residual"].norm()) for layer in layers))
        return norms

    for norms in on_thread_ranks(2, work, exchange="auto"):
        assert min(norms[:4]) > 0
        assert norms[4:] == [0.0, 0.0]


@pytest.mark.parametrize("paths", [["dense"], ["bf16", "allgather"], ["scatter", "ring", "dense"]])
def test_sending_everything_trains_the_same_by_all_paths(paths):
    """With momentum, applied on each rank before: dense steps must not apply it twice, or forget it."""

    def train(rank: ThreadRank) -> list[torch.Tensor]:
        if rank.optimizer.synchronizer.insight.changes is not None:
            script(rank, paths)
        for step in range(8):
            rank.optimizer.zero_grad()
            loss_of(rank.model, step, rank.rank).backward()
            rank.optimizer.step()
        return weights(rank.model)

    settings = {"compression": lossless(value_dtype="bfloat16"), "optimizer": sgd}
    changing = on_thread_ranks(3, train, exchange="auto", **settings)
    assert_same(changing[0], changing[2])
    fixed = on_thread_ranks(3, train, exchange="allgather", **settings)
    assert_same(
        changing[0], fixed[0], rtol=2e-2, atol=2e-3
    )  # bf16 rounds in other places, and it is paid later


def test_a_rank_that_refuses_delays_an_order_and_nobody_is_left_behind():
    def work(rank: ThreadRank) -> list[str]:
        script(rank, ["dense"])
        used = []
        for step in range(5):
            rank.optimizer.zero_grad()
            loss = loss_of(rank.model, step, rank.rank)
            if step == 1 and rank.rank == 1:
                loss = loss + rank.model[0].bias.sum() * float("nan")
            loss.backward()
            used.append(rank.optimizer.synchronizer.insight.changes.path)
            if step == 1:
                with pytest.raises(gradsieve_hvd.NonFiniteGradient):
                    rank.optimizer.step()
            else:
                rank.optimizer.step()
        return used

    for used in on_thread_ranks(2, work, exchange="auto"):
        assert used == ["allgather"] * 3 + ["dense"] * 2


def test_nan_on_the_dense_path_is_named_and_residuals_stay():
    def work(rank: ThreadRank) -> None:
        script(rank, ["bf16"])
        for step in range(4):
            rank.optimizer.zero_grad()
            loss = loss_of(rank.model, step, rank.rank)
            if step == 3 and rank.rank == 1:
                loss = loss + rank.model[0].weight.sum() * float("nan")
            loss.backward()
            before = gradsieve_hvd.state_dict(rank.optimizer)["layers"]
            if step < 3:
                rank.optimizer.step()
                continue
            with pytest.raises(gradsieve_hvd.NonFiniteGradient, match=r"'0\.weight' on rank 1\."):
                rank.optimizer.step()
            after = gradsieve_hvd.state_dict(rank.optimizer)["layers"]
            for name, layer in before.items():
                assert torch.equal(layer["feedback"]["residual"], after[name]["feedback"]["residual"])

    on_thread_ranks(2, work, compression=laplace(value_dtype="bfloat16"), exchange="auto")


def test_a_probe_that_was_ordered_is_made_by_all_ranks_and_timed_by_rank_0():
    def work(rank: ThreadRank) -> list[Any]:
        scripted = script(rank, ["allgather"], probe_bytes=30_000)
        for step in range(3):
            rank.optimizer.zero_grad()
            loss_of(rank.model, step, rank.rank).backward()
            rank.optimizer.step()
        return [] if scripted is None else scripted.probes

    probes = on_thread_ranks(3, work, exchange="auto")[0]
    assert len(probes) == 2
    assert all(probe.sent_bytes == 30_000 and probe.seconds > 0 for probe in probes)


def test_rounds_that_rank_0_has_no_time_to_look_at_are_counted(monkeypatch):
    monkeypatch.setattr("gradsieve_hvd.optimizer.path_changes._LEARNING_SHARE", 1e-9)

    def work(rank: ThreadRank) -> int:
        for number in range(5):
            rank.optimizer.zero_grad()
            loss_of(rank.model, number, rank.rank).backward()
            rank.optimizer.step()
        return rank.optimizer.explain().rounds

    assert on_thread_ranks(2, work, exchange="auto", compression=laplace())[0] == 5


def test_a_rank_whose_data_have_run_out_follows_the_others():
    def work(rank: ThreadRank) -> list[torch.Tensor]:
        script(rank, ["dense"])
        for step in range(4 + 4 * rank.rank):
            rank.optimizer.zero_grad()
            loss_of(rank.model, step, rank.rank).backward()
            rank.optimizer.step()
        rank.optimizer.join()
        return weights(rank.model)

    first, second = on_thread_ranks(2, work, optimizer=sgd, exchange="auto")
    assert_same(first, second)


def test_a_resumed_training_begins_with_the_first_path_and_its_residuals():
    def work(rank: ThreadRank) -> None:
        script(rank, ["bf16"])
        for step in range(4):
            rank.optimizer.zero_grad()
            loss_of(rank.model, step, rank.rank).backward()
            rank.optimizer.step()
        assert rank.optimizer.synchronizer.insight.changes.path == "bf16"
        saved = gradsieve_hvd.state_dict(rank.optimizer)
        rank.optimizer.restart()
        assert rank.optimizer.synchronizer.insight.changes.path == "allgather"
        gradsieve_hvd.load_state_dict(rank.optimizer, saved)
        loss_of(rank.model, 4, rank.rank).backward()
        rank.optimizer.step()

    on_thread_ranks(2, work, compression=laplace(value_dtype="bfloat16"), exchange="auto")


@pytest.mark.parametrize("how", ["clip_global_norm", "passes"])
def test_clipping_and_several_passes_go_together_with_changing_paths(how):
    def work(rank: ThreadRank) -> list[torch.Tensor]:
        script(rank, ["dense", "scatter", "bf16"])
        for step in range(6):
            rank.optimizer.zero_grad()
            for part in range(2 if how == "passes" else 1):
                loss_of(rank.model, 10 * step + part, rank.rank).backward()
            rank.optimizer.step()
        return weights(rank.model)

    clips = {"clip_global_norm": 0.5} if how == "clip_global_norm" else {}
    passes = {"backward_passes_per_step": 2} if how == "passes" else {}
    results = on_thread_ranks(
        3,
        work,
        compression=laplace(value_dtype="bfloat16", **clips),
        exchange="auto",
        optimizer=sgd,
        **passes,
    )
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])


def test_less_than_the_compression_asks_for_is_never_sent():
    def allowed(**how: Any) -> list[str]:
        return allowed_paths(gradsieve_hvd.Compression.topk(**how).config)

    sparse = ["allgather", "ring", "scatter"]
    assert allowed() == [*sparse, "dense"]
    assert allowed(value_dtype="float16") == [*sparse, "dense", "fp16"]
    assert allowed(value_dtype="int4") == [*sparse, "dense", "bf16"]
    from gradsieve import MomentumCorrection

    assert allowed(momentum=MomentumCorrection()) == sparse
    assert allowed(momentum=MomentumCorrection(masking=False)) == [*sparse, "dense"]


def test_the_hook_for_ddp_refuses_to_choose():
    with pytest.raises(gradsieve_hvd.ConfigurationError, match="exchange='auto' is for"):
        gradsieve_hvd.DdpState(perceptron(), exchange="auto")
