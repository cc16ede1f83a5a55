"""A plan's mode is followed by all ranks at the same step, or by none and not acknowledged."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest
import torch
from small_agent import AgentSocket
from thread_ranks import SECONDS
from training import assert_same, laplace, loss_of, perceptron, weights

from gradsieve_hvd.control import plan_exchange
from gradsieve_hvd.control.plan import Plan
from gradsieve_hvd.control.reporter import Reporter
from gradsieve_hvd.engine.compression_argument import settings_from
from gradsieve_hvd.optimizer.auto_mode import mode_agreement, served_steps
from gradsieve_hvd.optimizer.modes import optimizer_of
from gradsieve_hvd.optimizer.request import Request
from gradsieve_hvd.transport.threads import run_ranks


class Recorder(Reporter):
    """Keeps all samples."""

    def __init__(self) -> None:
        self.samples: list[dict[str, Any]] = []
        super().__init__(None)  # type: ignore[arg-type]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "sample" and value:
            self.samples.append(value)
        super().__setattr__(name, value)


@pytest.fixture
def reporter(monkeypatch) -> Recorder:
    """Rank 0's, without the thread that talks to a coordinator; messages come at every other step."""
    made = Recorder()
    monkeypatch.setattr(plan_exchange, "process_reporter", lambda: made)
    monkeypatch.setattr(plan_exchange, "steps_to_next", lambda seconds, last: 1)
    return made


@pytest.fixture
def agent(monkeypatch) -> Iterator[AgentSocket]:
    """The one of the ranks' host."""
    with AgentSocket() as made:
        monkeypatch.setenv("GRADSIEVE_SAMPLES", made.path)
        yield made


def follow(
    reporter: Reporter,
    plans: dict[int, dict[str, Any]],
    *,
    steps: int,
    mode: str = "auto",
    evaluates_every: int = 0,
    **options: Any,
) -> Any:
    """Train; before step number n rank 0 hears of plan n, and evaluates after every so many steps. Returns
    modes and weights, by rank and step, the last ones after `join`, and weights that were evaluated.
    """
    original = perceptron()

    def work(transport: Any) -> Any:
        model = copy.deepcopy(original)
        optimizer = optimizer_of(
            mode,
            Request(
                optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
                named=list(model.named_parameters()),
                compression=settings_from(laplace(timeout_seconds=SECONDS)),
                passes=1,
                averages=True,
                predivide=1.0,
                groups=None,
                sparse_as_dense=False,
                exchange="allgather",
                rank=None,
                momentum_correction=True,
                ranks=lambda timeout: transport,
                steered=True,
            ),
            {"local_steps": 3, **options} if mode == "auto" else {},
        )
        modes, seen, evaluated = [], [], []
        for step in range(steps):
            if transport.rank == 0 and step in plans:
                reporter.plan = Plan.read({"generation": step, **plans[step]})
            optimizer.zero_grad()
            loss_of(model, step, transport.rank).backward()
            optimizer.step()
            modes.append(getattr(optimizer, "mode", mode))
            seen.append(weights(model))
            if evaluates_every and step % evaluates_every == evaluates_every - 1:
                with optimizer.consistent():
                    evaluated.append(weights(model))
                time.sleep(0.002 * transport.rank)
        if options:
            optimizer.join()
            seen.append(weights(model))
        return (modes, seen, evaluated) if options else (modes, seen)

    return run_ranks(3, work, SECONDS)


def test_all_ranks_change_at_the_same_step_and_back(reporter):
    plans = {2: {"mode": "Local", "localSteps": 2}, 12: {"mode": "Synchronous", "densityPermille": 100}}
    results = follow(reporter, plans, steps=30)
    modes = results[0][0]
    assert [each[0] for each in results[1:]] == [modes] * 2
    assert modes[1] == "synchronous"
    assert modes[10] == "local"
    assert modes[-1] == "synchronous"
    for _, seen in results[1:]:
        assert_same(seen[-1], results[0][1][-1])
        assert not torch.equal(seen[modes.index("local") + 1][0], results[0][1][modes.index("local") + 1][0])
    assert reporter.sample is not None
    assert reporter.sample["appliedPlanGeneration"] == 12
    assert (reporter.sample["mode"], reporter.sample["modes"]) == ("Synchronous", ["Synchronous", "Local"])
    assert reporter.sample["densityPermille"] == pytest.approx(100, rel=0.3)


def test_samples_of_local_steps_say_what_a_step_costs(reporter):
    follow(reporter, {1: {"mode": "Local", "localSteps": 4}}, steps=25)
    sample = reporter.sample
    assert sample["mode"] == "Local"
    assert sample["step"] in range(17, 26)
    assert 0 < sample["waitSeconds"] < sample["stepSeconds"]
    assert 0 < sample["wireBytesPerStep"] < sample["denseBytesPerStep"]
    # What local rounds receive is not told; no bytes would mean that a higher density costs nothing.
    assert "receivedBytesPerStep" not in sample


def test_samples_say_what_the_link_is_worth(reporter):
    follow(reporter, {}, steps=20)
    sample = reporter.sample
    assert sample["bytesPerSecond"] > 0
    assert 0 < sample["startUpSeconds"] < 5
    assert sample["receivedBytesPerStep"] > 0
    assert 0 <= sample["selectSeconds"] < sample["stepSeconds"]


SERVER = {"parameter_server": True}


def test_ranks_that_step_at_their_own_pace_follow_plans_and_report(reporter, agent, monkeypatch):
    monkeypatch.setattr(served_steps, "_REPORT_SECONDS", 0.0)
    plans = {
        2: {"mode": "BoundedStaleness"},
        15: {"mode": "BoundedStaleness", "densityPermille": 300},
        30: {"mode": "Adaptive", "densityPermille": 300},
        45: {"mode": "Synchronous"},
    }
    results = follow(reporter, plans, steps=70, evaluates_every=10, **SERVER)
    for modes, seen, _ in results:
        assert_same(seen[-1], results[0][1][-1])
        assert [mode for mode, _ in groupby(modes)] == ["synchronous", "ssp", "dasp", "synchronous"]
    samples = [each for each in reporter.samples if "mode" in each]
    last = {(each["mode"], each["appliedPlanGeneration"]): each for each in samples}
    # No rank leads by more than three steps there, so that all are heard of in thirteen.
    assert set(last) >= {("BoundedStaleness", 2), ("BoundedStaleness", 15), ("Synchronous", 45)}
    served = last["BoundedStaleness", 15]
    assert set(served["modes"]) == {
        "Adaptive", "Asynchronous", "BoundedStaleness", "DynamicBoundedStaleness", "Local", "Synchronous"
    }  # fmt: skip
    assert 0 <= served["waitSeconds"] < served["stepSeconds"]
    told = [each for each in agent.told if each["appliedPlanGeneration"] == 15 and "measuredStep" not in each]
    assert {each["rank"] for each in told} == {0, 1, 2}
    assert all(each["stepSeconds"] > 0 for each in told)
    assert "measuredStep" not in served
    assert last["BoundedStaleness", 2]["densityPermille"] < served["densityPermille"]
    assert served["wireBytesPerStep"] > 0
    assert "receivedBytesPerStep" not in served
    steps = [each["step"] for each in reporter.samples if each]
    assert steps == sorted(steps)


@pytest.mark.parametrize("every", [1, 3, 7])
def test_plans_that_come_while_ranks_evaluate_leave_all_with_the_same_weights(reporter, every):
    modes = ["Adaptive", "Local", "Asynchronous", "Adaptive", "Synchronous", "BoundedStaleness", "Adaptive"]
    plans = {2 + 5 * number: {"mode": mode} for number, mode in enumerate(modes)}
    results = follow(reporter, plans, steps=42, evaluates_every=every, **SERVER)
    for _, seen, evaluated in results:
        assert len(evaluated) == 42 // every
        for own, first in zip(evaluated, results[0][2], strict=True):
            assert_same(own, first)
        assert_same(seen[-1], results[0][1][-1])
    assert "dasp" in results[0][0]


@pytest.mark.parametrize("mode", ["auto", "synchronous"])
def test_a_mode_that_a_program_cannot_change_to_is_refused_with_all_of_its_plan(reporter, capfd, mode):
    plans = {1: {"densityPermille": 20}, 5: {"mode": "Balanced", "densityPermille": 500}}
    results = follow(reporter, plans, steps=12, mode=mode)
    assert {each for modes, _ in results for each in modes} == {"synchronous"}
    assert reporter.sample["appliedPlanGeneration"] == 1
    can = "only to synchronous, local" if mode == "auto" else "not while it runs"
    said = capfd.readouterr().err
    assert said.count("is refused and plan 1 (densityPermille 20) stays in force") == 1
    assert can in said
    assert reporter.sample.get("modes") == (["Synchronous", "Local"] if mode == "auto" else None)


def test_ranks_that_cannot_change_say_so_and_train_on(reporter, caplog, monkeypatch):
    # As if weights were not the same: found out when the mode is to be changed.
    hashes = iter(range(1000))
    monkeypatch.setattr(mode_agreement, "bit_hash", lambda tensor: next(hashes))
    results = follow(reporter, {1: {"mode": "Local"}}, steps=12)
    assert results[0][0] == ["synchronous"] * 12
    assert "ranks differ in weights" in caplog.text
    assert "modes" not in reporter.sample


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"mode": "Fastest"}, "mode must be one of Synchronous"),
        ({"mode": ["Local"]}, "mode must be one of"),
        ({"mode": "Balanced", "localSteps": 3}, "for mode Local"),
        ({"mode": "Local", "localSteps": 0}, "from 1 to 1000"),
    ],
)
def test_a_plan_of_a_mode_that_nobody_knows_makes_no_sense(plan, words):
    with pytest.raises(Exception, match=words):
        Plan.read({"generation": 1, **plan})
