"""What `DistributedOptimizer(optimizer, named_parameters)` sends: what that optimizer is known to bear."""

from __future__ import annotations

import copy
import logging
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from training import assert_same, loss_of, weights

import gradsieve_hvd
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks

SECONDS = 20.0
SELECTS = {
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "SGD with momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Adam without a first moment": partial(torch.optim.Adam, lr=0.01, betas=(0.0, 0.999)),
    "AdamW with a short one": partial(torch.optim.AdamW, lr=0.01, betas=(0.5, 0.999)),
}
WHOLE = {
    "AdamW": (partial(torch.optim.AdamW, lr=0.01), "AdamW's beta1 of 0.9"),
    "NAdam": (partial(torch.optim.NAdam, lr=0.01, betas=(0.0, 0.999)), "NAdam, which was not tried"),
    "RMSprop": (partial(torch.optim.RMSprop, lr=0.01), "RMSprop, which was not tried"),
    "Nesterov": (partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True), "nesterov=True"),
}


def large() -> nn.Sequential:
    """A model of which one tensor is large enough to be compressed by default."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(60, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))


def trained(make: Any, steps: int = 2, **settings: Any) -> list[tuple[list[torch.Tensor], Any, int]]:
    """Return weights, explanation and bytes sent in the last step, by rank."""
    original = large()

    def run(transport: ThreadTransport) -> tuple[list[torch.Tensor], Any, int]:
        model = copy.deepcopy(original)
        optimizer = gradsieve_hvd.DistributedOptimizer(
            make(model.parameters()), model.named_parameters(), transport=transport, **settings
        )
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(model, step, transport.rank).backward()
            optimizer.step()
        return weights(model), optimizer.explain(), optimizer.stats().payload_bytes

    found = run_ranks(2, run, SECONDS)
    assert_same(found[0][0], found[1][0])
    return found


@pytest.mark.parametrize("make", SELECTS.values(), ids=SELECTS)
def test_what_is_known_to_bear_it_sends_selected_entries_by_the_fastest_path(make):
    # Rank 0 does not change the path before it has seen three steps.
    (mean, explained, sent), _ = trained(make)
    asked = gradsieve_hvd.Compression.laplace(density=0.03, value_dtype="int4")
    assert_same(mean, trained(make, exchange="auto", compression=asked)[0][0])
    assert 0 < sent < sum(each.numel() for each in mean)
    assert explained.path == "allgather"


@pytest.mark.parametrize(("make", "why"), WHOLE.values(), ids=WHOLE)
def test_what_is_not_sends_all_of_them_and_rank_0_says_why(make, why, caplog):
    with caplog.at_level(logging.WARNING, "gradsieve.optimizer"):
        (mean, explained, _), _ = trained(make)
    (named, _, _), _ = trained(make, exchange="bf16")
    assert_same(mean, named)
    (said,) = [each.getMessage() for each in caplog.records if "nothing was set" in each.getMessage()]
    for text in (said, str(explained)):
        assert "'bf16'" in text
        assert why in text
        assert "set compression=" in text


def test_one_group_with_a_first_moment_is_enough_to_send_all():
    def groups(parameters):
        first, *others = parameters
        own = {"params": [first], "betas": (0.9, 0.99)}
        return torch.optim.AdamW([own, {"params": others}], betas=(0.0, 0.99))

    assert trained(groups)[0][1].path == "bf16"


def test_momentum_that_shall_stay_with_the_optimizer_is_one_that_is_applied_too_late():
    explained = trained(SELECTS["SGD with momentum"], momentum_correction=False)[0][1]
    assert explained.path == "bf16"
    assert "momentum_correction=False" in str(explained)


@pytest.mark.parametrize("mode", ["balanced", "auto"])
def test_it_holds_in_modes_that_exchange_gradients_at_every_step(mode):
    assert trained(SELECTS["SGD"], steps=0, mode=mode)[0][1].path == "allgather"
    assert trained(WHOLE["AdamW"][0], steps=0, mode=mode)[0][1].path == "bf16"


def test_what_is_set_is_not_second_guessed(caplog):
    compression = gradsieve_hvd.Compression.topk(density=0.1)
    assert trained(WHOLE["AdamW"][0], compression=compression)[0][1].path == "allgather"
    explained = trained(WHOLE["AdamW"][0], exchange="scatter")[0][1]
    assert str(explained) == "compressed gradients travel by 'scatter': it was set (exchange=)"
    assert not any("nothing was set" in each.getMessage() for each in caplog.records)


@pytest.mark.parametrize("mode", ["local", "bsp"])
def test_modes_with_an_exchange_of_their_own_need_no_settings_either(mode):
    original = large()

    def run(transport):
        model = copy.deepcopy(original)
        optimizer = gradsieve_hvd.DistributedOptimizer(
            torch.optim.AdamW(model.parameters()), model.named_parameters(), transport=transport, mode=mode
        )
        loss_of(model, 0, transport.rank).backward()
        optimizer.step()
        (optimizer.finish if mode == "bsp" else optimizer.synchronize)()
        return True

    assert run_ranks(2, run, SECONDS) == [True, True]


@pytest.mark.parametrize(
    ("make", "change", "why"),
    [
        (SELECTS["SGD"], {"momentum": 0.9}, "it had none at first"),
        (SELECTS["AdamW with a short one"], {"betas": (0.95, 0.999)}, "AdamW's beta1 of 0.95"),
    ],
    ids=["SGD", "AdamW"],
)
def test_a_schedule_that_makes_of_it_what_selecting_costs_is_warned_about_once(make, change, why, caplog):
    def changes(parameters: Any) -> torch.optim.Optimizer:
        optimizer = make(parameters)
        optimizer.register_step_post_hook(lambda each, *_: each.param_groups[0].update(change))
        return optimizer

    trained(make, steps=3)
    assert not any("as it is now" in each.getMessage() for each in caplog.records)
    trained(changes, steps=4)
    (said,) = [each.getMessage() for each in caplog.records if "as it is now" in each.getMessage()]
    assert why in said
