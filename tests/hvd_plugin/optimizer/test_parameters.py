"""Parameters come, freeze and thaw; checkpoints hold what each rank owes."""

from __future__ import annotations

import pytest
import torch
from thread_ranks import ThreadRank, on_thread_ranks
from torch import nn
from torch.nn import functional as F
from training import assert_same, batch, laplace, loss_of, lossless, perceptron, residuals, sgd, weights

import gradsieve_hvd
from gradsieve.errors import ConfigurationError

RANKS = 2


def step(rank: ThreadRank, number: int) -> None:
    rank.optimizer.zero_grad()
    loss_of(rank.model, number, rank.rank).backward()
    rank.optimizer.step()


def test_an_added_group_is_reduced_from_the_next_step_on():
    def train(rank: ThreadRank) -> list[torch.Tensor]:
        step(rank, 0)
        head = nn.Linear(10, 40, bias=False)
        with torch.no_grad():
            head.weight.fill_(0.1)
        rank.optimizer.add_param_group({"params": [head.weight]})
        for number in range(1, 4):
            rank.optimizer.zero_grad()
            inputs, targets = batch(number, rank.rank)
            F.cross_entropy(head(rank.model(inputs)), targets).backward()
            rank.optimizer.step()
        return [*weights(rank.model), head.weight.detach().clone()]

    results = on_thread_ranks(RANKS, train, optimizer=sgd)
    assert_same(results[0], results[1])
    assert not bool((results[0][-1] == 0.1).all())


def test_a_group_cannot_be_added_while_gradients_travel():
    def add(rank: ThreadRank) -> None:
        loss_of(rank.model, 0, rank.rank).backward()
        with pytest.raises(ConfigurationError, match="between two steps"):
            rank.optimizer.add_param_group({"params": [torch.zeros(3, requires_grad=True)]})
        assert len(rank.optimizer.param_groups) == 1

    on_thread_ranks(1, add)


def test_a_group_that_is_taken_out_stays_as_it_is_and_the_others_train_on():
    def grouped(model: nn.Module) -> torch.optim.Optimizer:
        groups = [{"params": layer.parameters()} for layer in (model[0], model[2])]
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    def train(rank: ThreadRank) -> list[torch.Tensor]:
        step(rank, 0)
        held = weights(rank.model[2])
        rank.optimizer.param_groups.pop()
        before = weights(rank.model[0])
        step(rank, 1)
        assert_same(weights(rank.model[2]), held)
        assert not torch.equal(weights(rank.model[0])[0], before[0])
        return weights(rank.model)

    results = on_thread_ranks(2, train, optimizer=grouped)
    assert_same(results[0], results[1])


@pytest.mark.parametrize("mode", ["synchronous", "local"])
def test_a_group_that_comes_after_one_was_taken_out_has_names_of_its_own(mode):
    def train(rank: ThreadRank) -> list[torch.Tensor]:
        for _ in range(2):
            extra = nn.Parameter(torch.ones(300))
            rank.optimizer.add_param_group({"params": [extra]})
            rank.optimizer.zero_grad()
            (extra * (1 + rank.rank)).sum().backward()
            rank.optimizer.step()
            rank.optimizer.param_groups.pop()
        return [extra.detach().clone()]

    results = on_thread_ranks(2, train, mode=mode, **({"local_steps": 1} if mode == "local" else {}))
    assert_same(results[0], results[1])
    assert not torch.equal(results[0][0], torch.ones(300))


def test_a_group_that_cannot_be_exchanged_is_not_added_and_frozen_ones_of_any_type_are():
    def add(rank: ThreadRank) -> None:
        step(rank, 0)
        with pytest.raises(ConfigurationError, match="complex"):
            rank.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3, dtype=torch.complex64))]})
        assert len(rank.optimizer.param_groups) == 1
        frozen = nn.Parameter(torch.ones(3, dtype=torch.int8), requires_grad=False)
        rank.optimizer.add_param_group({"params": [frozen]})
        step(rank, 1)

    on_thread_ranks(2, add)


def test_a_model_that_is_all_frozen_takes_steps_that_change_nothing():
    model = perceptron().requires_grad_(False)

    def train(rank: ThreadRank) -> None:
        rank.optimizer.zero_grad()
        rank.optimizer.step()
        assert_same(weights(rank.model), weights(model))

    on_thread_ranks(2, train, model=model)


def test_a_layer_that_is_frozen_stays_as_it_is_and_trains_again_when_it_thaws():
    def train(rank: ThreadRank) -> list[torch.Tensor]:
        step(rank, 0)
        layer = rank.model[0].weight
        layer.requires_grad_(False)
        before = layer.detach().clone()
        for number in range(1, 4):
            step(rank, number)
        assert torch.equal(layer, before)
        layer.requires_grad_(True)
        step(rank, 4)
        assert not torch.equal(layer, before)
        return weights(rank.model)

    results = on_thread_ranks(RANKS, train, optimizer=sgd)
    assert_same(results[0], results[1])


def test_a_layer_that_was_frozen_from_the_beginning_trains_when_it_thaws():
    def train(rank: ThreadRank) -> list[torch.Tensor]:
        before = rank.model[0].weight.detach().clone()
        step(rank, 0)
        assert torch.equal(rank.model[0].weight, before)
        assert "0.weight" not in residuals(rank.optimizer), "what does not train needs no memory"
        rank.model[0].weight.requires_grad_(True)
        for number in range(1, 4):
            step(rank, number)
        assert not torch.equal(rank.model[0].weight, before)
        return weights(rank.model)

    model = perceptron()
    model[0].weight.requires_grad_(False)
    results = on_thread_ranks(RANKS, train, model=model, optimizer=sgd)
    assert_same(results[0], results[1])


@pytest.mark.parametrize("exchange", ["scatter", "dense"])
@pytest.mark.parametrize("everywhere", [True, False])
def test_a_tensor_that_travels_whole_may_be_frozen(exchange, everywhere):
    def train(rank: ThreadRank) -> list[torch.Tensor]:
        step(rank, 0)
        before = rank.model[2].bias.detach().clone()
        rank.model[2].bias.requires_grad_(not everywhere and rank.rank > 0)
        step(rank, 1)
        assert torch.equal(rank.model[2].bias, before) == everywhere
        return weights(rank.model)

    results = on_thread_ranks(RANKS, train, exchange=exchange, optimizer=sgd)
    assert_same(results[0], results[1])


class Words(nn.Module):
    """A sparse embedding and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 20, sparse=True)
        self.layer = nn.Linear(20, 10)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.layer(self.embedding(words).mean(dim=1))


def test_sparse_gradients_are_exchanged_as_dense_ones_if_that_is_wanted():
    def train(rank: ThreadRank) -> list[torch.Tensor]:
        for number in range(3):
            rank.optimizer.zero_grad()
            words = torch.tensor([[number, 3 * rank.rank, 7]])
            F.cross_entropy(rank.model(words), torch.tensor([number])).backward()
            rank.optimizer.step()
        return weights(rank.model)

    torch.manual_seed(0)
    results = on_thread_ranks(RANKS, train, model=Words(), sparse_as_dense=True)
    assert_same(results[0], results[1])


def test_sparse_gradients_are_refused_otherwise():
    def train(rank: ThreadRank) -> None:
        with pytest.raises(ConfigurationError, match=r"'embedding\.weight' is sparse .* sparse_as_dense"):
            rank.model(torch.tensor([[1, 2]])).sum().backward()

    on_thread_ranks(1, train, model=Words())


def test_tied_weights_are_exchanged_once():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(30, 30, bias=False)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.inner(torch.tanh(self.inner(inputs)))

    def train(rank: ThreadRank) -> list[torch.Tensor]:
        for number in range(3):
            rank.optimizer.zero_grad()
            rank.model(torch.full((1, 30), 0.1 * (number + rank.rank))).square().sum().backward()
            rank.optimizer.step()
        return weights(rank.model)

    results = on_thread_ranks(RANKS, train, model=Tied())
    assert_same(results[0], results[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.filterwarnings("ignore:nothing is compressed")  # float64
def test_half_precision_and_double_precision_are_exchanged(dtype):
    def train(rank: ThreadRank) -> list[torch.Tensor]:
        for number in range(3):
            step(rank, number)
        return weights(rank.model)

    model = perceptron().to(dtype)
    results = on_thread_ranks(RANKS, train, model=model)
    assert_same(results[0], results[1])
    assert all(weight.dtype == dtype for weight in results[0])


@pytest.mark.parametrize("exchange", ["allgather", "lowrank"])
def test_a_training_goes_on_from_checkpoints_as_if_it_had_not_stopped(exchange):
    def whole(rank: ThreadRank) -> list[torch.Tensor]:
        for number in range(6):
            step(rank, number)
        return weights(rank.model)

    saved: dict[int, tuple] = {}

    def first(rank: ThreadRank) -> None:
        for number in range(3):
            step(rank, number)
        saved[rank.rank] = (
            rank.model.state_dict(),
            rank.optimizer.state_dict(),
            gradsieve_hvd.state_dict(rank.optimizer),
        )

    def second(rank: ThreadRank) -> list[torch.Tensor]:
        model, optimizer, owed = saved[rank.rank]
        rank.model.load_state_dict(model)
        rank.optimizer.load_state_dict(optimizer)
        gradsieve_hvd.load_state_dict(rank.optimizer, owed)
        assert residuals(rank.optimizer).keys() == owed["layers"].keys()
        for number in range(3, 6):
            step(rank, number)
        return weights(rank.model)

    expected = on_thread_ranks(RANKS, whole, optimizer=sgd, exchange=exchange)
    on_thread_ranks(RANKS, first, optimizer=sgd, exchange=exchange)
    assert_same(on_thread_ranks(RANKS, second, optimizer=sgd, exchange=exchange)[0], expected[0])


@pytest.mark.parametrize(
    ("exchange", "rank", "complaint"),
    [("lowrank", 2, "use the rank that it was saved with"), ("allgather", None, "'threshold'")],
)
def test_what_low_rank_has_saved_is_refused_by_what_could_not_use_it(exchange, rank, complaint):
    def save(rank: ThreadRank) -> dict:
        step(rank, 0)
        return gradsieve_hvd.state_dict(rank.optimizer)

    [saved] = on_thread_ranks(1, save, exchange="lowrank")

    def load(own: ThreadRank) -> None:
        with pytest.raises(ConfigurationError, match=complaint):
            gradsieve_hvd.load_state_dict(own.optimizer, saved)

    on_thread_ranks(1, load, exchange=exchange, rank=rank)


def test_gradients_are_clipped_before_they_are_accumulated():
    def train(rank: ThreadRank) -> list[torch.Tensor]:
        for number in range(4):
            step(rank, number)
        return weights(rank.model)

    results = on_thread_ranks(3, train, compression=laplace(clip_global_norm=0.01))
    for result in results[1:]:
        assert_same(result, results[0])
    unclipped = on_thread_ranks(3, train)
    assert not torch.equal(unclipped[0][0], results[0][0])


@pytest.mark.parametrize("op", ["average", "sum"])
def test_the_norm_that_is_clipped_by_is_this_steps(op):
    """The first gradient and one that explodes are cut to the bound at once, in their own direction."""
    bound, ranks = 0.01, 3

    def train(rank: ThreadRank) -> None:
        for number, size in enumerate([1.0, 1.0, 1e4, 1.0]):
            before = weights(rank.model)
            gradients = []
            for each in range(ranks):
                rank.model.zero_grad()
                loss = size * loss_of(rank.model, number, each)
                gradients.append(torch.autograd.grad(loss, list(rank.model.parameters())))
            whole = torch.cat([torch.stack(parts).sum(0).flatten() for parts in zip(*gradients, strict=True)])
            rank.optimizer.zero_grad()
            (size * loss_of(rank.model, number, rank.rank)).backward()
            rank.optimizer.step()
            new = weights(rank.model)
            moved = torch.cat([(a - b).flatten() for a, b in zip(before, new, strict=True)]) / 0.1
            assert moved.norm() == pytest.approx(bound, rel=0.25)  # four times the sketch's deviation
            torch.testing.assert_close(moved / moved.norm(), whole / whole.norm(), rtol=1e-3, atol=1e-3)

    on_thread_ranks(ranks, train, compression=lossless(clip_global_norm=bound), op=op)


@pytest.mark.parametrize("exchange", ["allgather", "lowrank", "dense"])
def test_clipped_training_survives_what_a_step_may_be(exchange):
    """A frozen layer, a gradient that is missing on one rank, a skipped step, a rank that has joined."""

    def train(rank: ThreadRank) -> list[torch.Tensor]:
        step(rank, 0)
        rank.model[0].weight.requires_grad_(rank.rank != 1)
        step(rank, 1)
        rank.model[0].weight.requires_grad_(True)
        rank.optimizer.zero_grad()
        if rank.rank:
            loss_of(rank.model, 2, rank.rank).backward()
        rank.optimizer.synchronize()
        for number in range(3, 5 + rank.rank):
            step(rank, number)
        rank.optimizer.join()
        return weights(rank.model)

    results = on_thread_ranks(
        3, train, exchange=exchange, optimizer=sgd, compression=laplace(clip_global_norm=0.01)
    )
    for result in results[1:]:
        assert_same(result, results[0])
