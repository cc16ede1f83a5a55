"""What goes wrong in rounds of local steps: every rank learns it, and weights are those before the round."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from local_ranks import local, sparse, train, waiting
from thread_ranks import ThreadRank
from torch import nn
from training import assert_same, loss_of, perceptron, weights

import gradsieve_hvd
from gradsieve.errors import ConfigurationError, ExchangeError, NonFiniteGradient, RankMismatch
from gradsieve_hvd.optimizer.local.finite import not_finite
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks


def refused(rank: ThreadRank, error: type[Exception], said: str, *, steps: int = 3) -> None:
    """Take the steps of a round that all ranks have to refuse; check that nothing has changed."""
    before, residuals = weights(rank.model), waiting(rank)
    with pytest.raises(error, match=said):
        train(rank, steps, first=100)
    assert_same(weights(rank.model), before)
    assert_same(waiting(rank), residuals)


MODEL = perceptron()  # made here: threads share the random number generator


def own_rank(transport: Any, **settings: Any) -> ThreadRank:
    """Return a rank with an optimizer of its own settings."""
    model = copy.deepcopy(MODEL)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = gradsieve_hvd.DistributedOptimizer(
        plain, model.named_parameters(), transport=transport, **settings
    )
    return ThreadRank(transport.rank, transport.size, model, optimizer, transport)


@pytest.mark.parametrize("step", [0, 2])
def test_a_gradient_that_is_not_finite_is_named_on_all_ranks(step):
    def work(rank: ThreadRank) -> Any:
        train(rank, 3)
        before, residuals = weights(rank.model), waiting(rank)

        def poisoned() -> None:
            for number in range(3):
                rank.optimizer.zero_grad()
                bad = rank.rank == 1 and number == step
                (loss_of(rank.model, number, rank.rank) * (float("nan") if bad else 1.0)).backward()
                rank.optimizer.step()

        with pytest.raises(NonFiniteGradient, match=r"'0\.weight' on rank 1"):
            poisoned()
        assert_same(weights(rank.model), before)
        assert_same(waiting(rank), residuals)
        return train(rank, 3, first=10)

    first, second = local(2, work)
    assert_same(first, second)


def test_weights_that_are_not_finite_are_named_on_all_ranks():
    def work(rank: ThreadRank) -> Any:
        train(rank, 3)
        before = weights(rank.model)
        train(rank, 1)
        with torch.no_grad():
            rank.model[2].bias[0] = float("inf") if rank.rank == 0 else 0.0
        with pytest.raises(NonFiniteGradient, match=r"'2\.bias' on rank 0"):
            rank.optimizer.synchronize()
        assert_same(weights(rank.model), before)

    local(2, work)


def test_only_gradients_with_nan_or_infinity_count_as_such():
    big = torch.full((4,), 3e38)
    rows = torch.sparse_coo_tensor([[1, 1]], torch.tensor([1.0, float("inf")]), (3,), check_invariants=True)
    gradients = {"big": big, "half": big.to(torch.bfloat16), "none": None, "nan": big * float("nan")}
    assert not_finite({**gradients, "rows": rows}.items()) == {"nan", "rows"}
    assert not_finite({"big": big, "wide": torch.full((2,), 1e300, dtype=torch.float64)}.items()) == set()


def test_the_state_of_an_optimizer_is_spared_a_gradient_that_is_not_finite():
    def work(rank: ThreadRank) -> None:
        train(rank, 1)
        rank.model[0].weight.grad.fill_(float("nan"))
        rank.optimizer.step()
        state = rank.optimizer.state_dict()["state"]
        assert all(torch.isfinite(each["exp_avg"]).all() for each in state.values())
        with pytest.raises(NonFiniteGradient):
            rank.optimizer.synchronize()

    local(2, work)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        pytest.param({"local_steps": (3, 4)}, "local_steps is 3 on rank 0 and 4 on rank 1", id="H"),
        pytest.param({"residual_decay": (0.9, 0.8)}, r"residual_decay is 0\.9 on rank 0", id="decay"),
        pytest.param({"outer_learning_rate": (1.0, 0.7)}, "outer_learning_rate is 1", id="rate"),
        pytest.param({"compression": (sparse(0.1), sparse(0.2))}, r"density is 0\.1 on rank 0", id="k"),
        pytest.param(
            {"compression": (sparse(), sparse(group_size=64))}, "group_size is 128 on rank 0", id="chunk"
        ),
        pytest.param({"mode": ("local", "synchronous")}, "ranks run with different settings", id="mode"),
    ],
)
def test_ranks_with_other_settings_are_told_before_the_first_step(settings, said):
    def work(transport: ThreadTransport) -> None:
        own = {
            "mode": "local",
            "compression": sparse(),
            **{k: v[transport.rank] for k, v in settings.items()},
        }
        rank = own_rank(transport, **own)
        before = weights(rank.model)

        def step() -> None:
            loss_of(rank.model, 0, rank.rank).backward()
            rank.optimizer.step()

        with pytest.raises(RankMismatch, match=said):
            step()
        assert_same(weights(rank.model), before)

    run_ranks(2, work)


def test_a_rank_that_synchronizes_alone_is_told_to_all():
    def work(rank: ThreadRank) -> None:
        train(rank, 3)
        before, residuals = weights(rank.model), waiting(rank)
        train(rank, 1, first=3)

        def end() -> None:
            if rank.rank == 0:
                rank.optimizer.synchronize()
            train(rank, 2, first=4)

        said = r"rank 0 by synchronize\(\) after 1, rank 1 by all steps after 3"
        with pytest.raises(RankMismatch, match=said):
            end()
        assert_same(weights(rank.model), before)
        assert_same(waiting(rank), residuals)

    local(2, work)


def test_weights_that_differ_at_the_start_are_named():
    def work(rank: ThreadRank) -> None:
        if rank.rank == 1:
            with torch.no_grad():
                rank.model[2].bias.add_(1.0)
        refused(rank, RankMismatch, r"differ between ranks: '2\.bias' on rank 1\..*broadcast_parameters")

    local(2, work)


class Breaking:
    """A transport that flips a bit of the first long message that another rank has sent, once asked to."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.rank, self.size, self.breaks = inner, inner.rank, inner.size, False

    def send_receive(self, message: torch.Tensor, to: int, source: int) -> torch.Tensor:
        received = self.inner.send_receive(message, to, source)
        if self.breaks:
            self.breaks, received = False, received.clone()
            received[-1] ^= 1
        return received


def test_a_corrupted_payload_is_told_to_all_and_nothing_is_applied_anywhere():
    def work(plain: ThreadTransport) -> Any:
        transport = Breaking(plain)
        rank = own_rank(transport, compression=sparse(), mode="local", local_steps=3)
        train(rank, 3)
        transport.breaks = rank.rank == 1
        refused(rank, ExchangeError, "applied, on no rank: rank 1: .*checksum")
        return train(rank, 3, first=10)

    results = run_ranks(3, work)
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])


def test_a_rank_that_stays_away_is_an_error_on_the_others_in_time():
    def work(rank: ThreadRank) -> Any:
        train(rank, 3)
        before = weights(rank.model)
        if rank.rank == 1:
            return
        with pytest.raises(ExchangeError, match="rank 1"):
            train(rank, 3)
        assert_same(weights(rank.model), before)

    local(2, work, timeout=1.0, compression=sparse(timeout_seconds=10.0))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"local_steps": 0}, "local_steps=0 is not allowed"),
        ({"residual_decay": 1.5}, "residual_decay=1.5 is not allowed"),
        ({"outer_learning_rate": -1.0}, "outer_learning_rate=-1.0 is not allowed"),
        ({"bound": 3}, "bound=3 is not known; mode='local' takes local_steps=, residual_decay="),
        ({"exchange": "ring"}, "leave out exchange='ring'"),
        ({"op": "sum"}, "leave out op=Sum"),
        ({"mode": "lokal"}, "mode='lokal': known are 'synchronous', 'balanced', 'local'"),
        ({"mode": "synchronous", "local_steps": 3}, "'synchronous' takes no settings of its own"),
        ({"compression": gradsieve_hvd.Compression.layered()}, "cannot be used with Compression.layered"),
        ({"compression": sparse(clip_norm=1.0)}, "cannot be used with clip_norm"),
        ({"compression": sparse(error_feedback=False)}, "cannot be used with error_feedback=False"),
    ],
)
def test_a_setting_without_meaning_is_refused(settings, said):
    model = nn.Linear(3, 2)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        gradsieve_hvd.DistributedOptimizer(plain, model.named_parameters(), **{"mode": "local", **settings})


def test_habits_of_synchronous_training_that_would_do_harm_are_refused():
    def work(rank: ThreadRank) -> None:
        with (
            pytest.raises(ConfigurationError, match="exchanges no gradients"),
            rank.optimizer.skip_synchronize(),
        ):
            pass
        with pytest.raises(ConfigurationError, match=r"optimizer\.finish\(\)"):
            rank.optimizer.join()
        with pytest.raises(ConfigurationError, match=r"optimizer\.stats\(\)"):
            gradsieve_hvd.statistics(rank.optimizer)

    local(1, work)
