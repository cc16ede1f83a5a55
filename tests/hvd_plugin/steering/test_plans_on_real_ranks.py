"""Telemetry goes to the coordinator and plans come back, while four real ranks train."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from small_agent import AgentSocket
from small_coordinator import SmallCoordinator, make_certificates

SUPPORT = Path(__file__).parents[2] / "support"
RANKS, SLOW, SLOW_SECONDS = 4, 3, 0.2
REPORTING_SECONDS = 0.5
STARTING_SECONDS = 200.0  # four ranks import torch at once, perhaps on one busy core
PROGRAM = f"""
import gc, json, sys, time, weakref
from pathlib import Path
sys.path.insert(0, {str(SUPPORT)!r})
import horovod.torch as hvd, torch
from gradsieve_hvd.control import reporter
reporter.SECONDS = {REPORTING_SECONDS}
import gradsieve_hvd
from gradsieve_hvd.dropin.compressor import adapter_of
from gradsieve_hvd.optimizers import restart
from training import *
folder = Path(sys.argv[1])
hvd.init()
torch.set_num_threads(1)
model = perceptron()
compression = gradsieve_hvd.Compression.topk(density=0.05, min_elements=100, timeout_seconds=60)
if sys.argv[2] == "drop-in":
    optimizer = distribute(hvd, model, compression)
else:
    optimizer = gradsieve_hvd.DistributedOptimizer(sgd(model), model.named_parameters(), compression)
settings = dict(directory=folder / "commits", every=5, timeout_seconds=60)
state = gradsieve_hvd.TrainingState(model, optimizer, **settings)
kept, step, over = [], state.restore(), False
while not over:
    time.sleep({SLOW_SECONDS} if hvd.rank() == {SLOW} else 0.01)
    train(hvd, model, optimizer, steps=1, first=step)
    kept.append(gradsieve_hvd.statistics(optimizer).kept)
    step += 1
    if sys.argv[2] == "drop-in" and step == 2:
        clock = weakref.ref(adapter_of(optimizer).control.clock)
        restart(optimizer)
    if sys.argv[2] == "drop-in" and step == 3:
        gc.collect()
        assert clock() is None, "a restart leaves the clock of before at work"
    state.commit(step)
    over = bool(hvd.allreduce(torch.tensor(float((folder / "stop").exists())), name="over", op=hvd.Max))
assert_equal_on_all_ranks(hvd, weights(model))
(folder / f"kept-{{hvd.rank()}}.json").write_text(json.dumps(kept))
"""
CONFIGURED, TENTH, BOUNDED, AGAIN = 60 + 10, 120 + 20, 240 + 40, 600 + 100  # entries kept of 1 200 and 200


@dataclass
class Story:
    """What happened in one job from its start to its end. told: by ranks of themselves, to their agent. hops:
    how often a payload counts as sent.
    """

    samples: dict[str, dict[str, Any]]
    told: list[dict[str, Any]]
    kept: list[list[int]]
    steps_without_coordinator: tuple[int, int]
    output: str
    hops: int


@pytest.fixture(scope="module", params=["drop-in", "own"])
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """One job: a plan, plans that make no sense, limits, a coordinator that dies and another in its place."""
    folder = tmp_path_factory.mktemp("plans")
    make_certificates(folder / "tls")
    (folder / "program.py").write_text(PROGRAM)
    with (
        (folder / "output").open("w") as log,
        AgentSocket() as agent,
        SmallCoordinator(folder / "tls" / "coordinator") as first,
    ):
        job = _start(folder, first.port, request.param, agent.path, log)
        try:
            samples, without = _plans_of_all_kinds(folder, first, job)
            status = job.wait(timeout=60)
        finally:
            job.terminate()
            job.wait(timeout=60)
    output = (folder / "output").read_text()
    assert status == 0, output
    kept = [json.loads((folder / f"kept-{rank}.json").read_text()) for rank in range(RANKS)]
    hops = 1 if request.param == "drop-in" else RANKS - 1
    return Story(samples, agent.told, kept, without, output, hops)


def _plans_of_all_kinds(
    folder: Path, first: SmallCoordinator, job: subprocess.Popen[str]
) -> tuple[dict[str, dict[str, Any]], tuple[int, int]]:
    samples = {"before": first.wait_for(lambda sample: True, seconds=STARTING_SECONDS)}
    first.plan = {"generation": 3, "densityPermille": 100, "algorithm": "TopK"}
    samples["tenth"] = first.wait_for(lambda sample: sample["appliedPlanGeneration"] == 3)
    for senseless in (
        {"generation": 4, "densityPermille": 5000},
        {"generation": 5, "minDensityPermille": 300, "maxDensityPermille": 200},
    ):
        first.plan = senseless
        since = len(first.samples)
        first.wait_for(lambda _: len(first.samples) >= since + 3)  # noqa: B023 - called at once
    samples["refused"] = first.samples[-1]
    first.plan = {"generation": 6, "minDensityPermille": 200}
    samples["bounded"] = first.wait_for(lambda sample: sample["appliedPlanGeneration"] == 6)
    first.close()
    last, plan = first.samples[-1]["step"], {"generation": 7, "densityPermille": 500}
    with SmallCoordinator(folder / "tls" / "coordinator", plan, first.port) as second:
        samples["again"] = second.wait_for(lambda sample: sample["appliedPlanGeneration"] == 7)
        (folder / "stop").touch()
        job.wait(timeout=60)
        samples["last"] = second.samples[-1]
    return samples, (last, samples["again"]["step"])


def _start(folder: Path, port: int, front_door: str, agent: str, log: Any) -> subprocess.Popen[str]:
    environment = os.environ | {
        "GRADSIEVE_COORDINATOR": f"https://127.0.0.1:{port}",
        "GRADSIEVE_TLS_DIR": str(folder / "tls" / "worker"),
        "GRADSIEVE_SAMPLES": agent,
        "GRADSIEVE_JOB_GENERATION": "4",
    }
    command = ["-m", "gradsieve_hvd.cli", "run", "-np", str(RANKS), "--timeout", "400", "--"]
    program = [sys.executable, str(folder / "program.py"), str(folder), front_door]
    return subprocess.Popen(
        [sys.executable, *command, *program], env=environment, stdout=log, stderr=subprocess.STDOUT, text=True
    )


pytestmark = pytest.mark.timeout(480)


def test_a_sample_says_what_a_step_costs(story: Story) -> None:
    sample = story.samples["tenth"]
    assert sample["generation"] == 4
    assert sample["densityPermille"] == pytest.approx(100)
    assert 0 < sample["waitSeconds"] < sample["stepSeconds"] < 60
    biases = 4 * (20 + 10)
    packed = (sample["wireBytesPerStep"] - biases) / story.hops
    assert 2 * TENTH < packed < 6 * TENTH, "packed values and indices"
    assert sample["denseBytesPerStep"] == biases + 4 * 10 * TENTH
    assert sample["committedStep"] % 5 == 0
    assert 0 < sample["committedStep"] <= sample["step"] + 5


def test_the_last_sample_is_of_the_last_step(story: Story) -> None:
    assert story.samples["last"]["step"] == len(story.kept[0])
    assert story.samples["last"]["committedStep"] % 5 == 0


def test_the_rank_that_works_longest_is_told_from_those_that_wait_for_it(story: Story) -> None:
    """In most samples: in some a busy machine lets another rank wait for a core."""
    by_rank = [[told for told in story.told if told["rank"] == rank][1:] for rank in range(RANKS)]
    working = [median(told["stepSeconds"] for told in one) for one in by_rank]
    assert working[SLOW] == max(working)
    assert working[SLOW] > SLOW_SECONDS


def test_all_ranks_tell_of_the_same_steps_under_the_same_plan_as_the_sample_of_the_job(story: Story) -> None:
    sample = story.samples["tenth"]
    told = [told for told in story.told if told["measuredStep"] == sample["measuredStep"]]
    assert sorted(each["rank"] for each in told) == list(range(RANKS))
    assert {(each["generation"], each["appliedPlanGeneration"]) for each in told} == {(4, 3)}
    assert sample["measuredStep"] == sample["step"] - 1


def test_all_ranks_change_at_the_same_step(story: Story) -> None:
    assert story.kept[1:] == story.kept[:-1], "exact top-k keeps what the plan says, step by step"
    changes = [(before, after) for before, after in pairwise(story.kept[0]) if before != after]
    assert changes == [(CONFIGURED, TENTH), (TENTH, BOUNDED), (BOUNDED, AGAIN)]
    for plan, entries in (("plan 3", TENTH), ("plan 6", BOUNDED), ("plan 7", AGAIN)):
        step = story.kept[0].index(entries)
        for rank in range(RANKS):
            (line,) = [one for one in story.output.splitlines() if f"rank {rank}: {plan} " in one]
            assert line.endswith(f"from step {step} on")


def test_plans_that_make_no_sense_are_refused_and_change_nothing(story: Story) -> None:
    assert story.samples["refused"]["appliedPlanGeneration"] == 3
    assert story.output.count("plan is refused and plan 3 (densityPermille 100) stays in force") == 2
    assert "densityPermille must be a whole number from 1 to 1000, not 5000" in story.output
    assert "lowest=0.3 must be at most highest=0.2" in story.output


def test_training_goes_on_without_a_coordinator_and_finds_the_next_one(story: Story) -> None:
    last, first = story.steps_without_coordinator
    assert first > last
    assert story.output.count("does not answer; the training goes on under plan 6") == 1
    assert story.output.count("the coordinator answers again") == 1
