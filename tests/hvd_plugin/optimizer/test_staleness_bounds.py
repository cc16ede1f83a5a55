"""``staleness_bound=``: by how many iterations a rank may lead the slowest, where a mode has such a bound."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from scripted_workers import Script, cycle
from thread_ranks import ThreadRank, on_thread_ranks
from training import laplace, loss_of

from gradsieve.errors import ConfigurationError, RankMismatch
from gradsieve_hvd.control.plan import Plan
from gradsieve_hvd.server.events import Pushed, Reply
from gradsieve_hvd.server.modes import BOUNDED, policy


def leads(mode: str, bound: int | None, seconds: float = 400.0) -> int:
    """Return the most iterations by which a worker that goes on leads one that is ten times as slow."""
    script = Script(policy(mode, bound), 2, cycle(1, 10)).run(seconds)
    clocks, most = [0, 0], 0
    for _, event, actions in script.log:
        if isinstance(event, Pushed):
            clocks[event.rank] += 1
        for action in actions:
            if isinstance(action, Reply):
                most = max(most, clocks[action.rank] - min(clocks))
    return most


@pytest.mark.parametrize("bound", [1, 2, 3, 4, 8, 20])
@pytest.mark.parametrize("mode", BOUNDED)
def test_no_worker_leads_by_more(mode, bound):
    # Beyond its usual bound dssp gives what lets the fastest wait least, which need not be all.
    assert min(bound, 3) <= leads(mode, bound) <= bound


def test_without_one_leads_are_those_of_the_papers():
    assert leads("ssp", None) == 3
    assert 3 <= leads("dssp", None) <= 15


@pytest.mark.parametrize("mode", ["asp", "dasp", "synchronous"])
def test_other_modes_have_none(mode):
    assert policy(mode, 2) == policy(mode)


def step(rank: ThreadRank, number: int) -> None:
    rank.optimizer.zero_grad()
    loss_of(rank.model, number, rank.rank).backward()
    rank.optimizer.step()


@pytest.mark.parametrize("bound", [1, 4])
def test_a_fast_rank_waits_when_it_leads_by_the_bound(bound):
    taken, waits = [], threading.Event()

    def train(rank: ThreadRank) -> None:
        for number in range(bound + 4):
            if rank.rank == 1 and number == 1:
                assert waits.wait(30)
                time.sleep(0.2)  # in which it would go on, if it might
                assert len(taken) == bound + 1
            step(rank, number)
            if rank.rank == 0:
                taken.append(number)
                if len(taken) == bound + 1:
                    waits.set()
        rank.optimizer.finish()

    on_thread_ranks(2, train, mode="ssp", staleness_bound=bound)


@pytest.mark.parametrize(
    ("mode", "bound"), [("asp", 3), ("dasp", 3), ("ssp", 0), ("ssp", -1), ("dssp", 2.5), ("ssp", True)]
)
def test_what_is_no_bound_or_for_another_mode_is_refused(mode, bound):
    with pytest.raises(ConfigurationError, match="staleness_bound=.* must be an integer of at least 1"):
        on_thread_ranks(1, lambda rank: None, mode=mode, staleness_bound=bound)


def auto(work: Any, ranks: int = 2) -> list[Any]:
    return on_thread_ranks(ranks, work, mode="auto", parameter_server=True, compression=laplace())


def test_a_training_changes_to_a_mode_with_a_bound_and_to_another_bound_and_forgets_it_elsewhere():
    def work(rank: ThreadRank) -> list[tuple[str, int | None]]:
        changes, seen = rank.optimizer.mode_changes, []
        wanted = [("ssp", 2), ("ssp", 5), ("ssp", None), ("dssp", 7), ("asp", None), ("synchronous", None)]
        for number, (mode, bound) in enumerate(wanted):
            rank.optimizer.change_mode(mode, staleness_bound=bound)
            step(rank, number)
            seen.append((rank.optimizer.mode, changes.staleness_bound))
        return seen

    for seen in auto(work):
        assert seen == [
            ("ssp", 2), ("ssp", 5), ("ssp", None), ("dssp", 7), ("asp", None), ("synchronous", None)
        ]  # fmt: skip


def test_ranks_that_want_other_bounds_are_told_so_and_nothing_changes():
    def work(rank: ThreadRank) -> str:
        with pytest.raises(RankMismatch, match="ranks differ in staleness_bound"):
            rank.optimizer.change_mode("ssp", staleness_bound=2 + rank.rank)
        return rank.optimizer.mode

    assert auto(work) == ["synchronous"] * 2


def test_a_bound_for_a_mode_without_one_is_refused_on_all_ranks():
    def work(rank: ThreadRank) -> str:
        with pytest.raises(ConfigurationError, match="for modes 'ssp' and 'dssp'"):
            rank.optimizer.change_mode("asp", staleness_bound=2)
        return rank.optimizer.mode

    assert auto(work) == ["synchronous"] * 2


def test_a_plan_has_a_bound_for_the_bounded_modes_alone():
    plan = Plan.read({"generation": 1, "mode": "DynamicBoundedStaleness", "stalenessBound": 8})
    assert (plan.mode, plan.staleness_bound) == ("dssp", 8)
    assert "stalenessBound 8" in str(plan)
    for fields in (
        {"mode": "Adaptive", "stalenessBound": 8},
        {"stalenessBound": 8},
        {"mode": "BoundedStaleness", "stalenessBound": 0},
        {"mode": "BoundedStaleness", "stalenessBound": 1001},
        {"mode": "BoundedStaleness", "stalenessBound": "8"},
    ):
        with pytest.raises(ConfigurationError, match="stalenessBound must be a whole number from 1 to 1000"):
            Plan.read({"generation": 1, **fields})
