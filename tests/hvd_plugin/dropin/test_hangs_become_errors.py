"""What would wait for ever in plain Horovod ends here, with the reason, within the time-out."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_ranks import run_alone

SUPPORT = Path(__file__).parents[2] / "support"

PREAMBLE = f"""
import sys
sys.path.insert(0, {str(SUPPORT)!r})
import horovod.torch as hvd, torch
from training import *
hvd.init()
"""

pytestmark = pytest.mark.timeout(150)


def ends_with(program: str, folder: Path, *expected: str, ranks: int = 2) -> None:
    status, output = run_alone(PREAMBLE + program, ranks, folder)
    assert status not in (0, 124), f"the job ended with status {status}:\n{output}"
    for text in expected:
        assert text in output, f"{text!r} is missing in:\n{output}"


def test_a_rank_that_runs_without_gradsieve_is_found_out(tmp_path: Path) -> None:
    ends_with(
        """
model = perceptron()
optimizer = distribute(hvd, model, laplace(timeout_seconds=5) if hvd.rank() == 0 else hvd.Compression.none)
train(hvd, model, optimizer)
""",
        tmp_path,
        "RankMismatch",
        "Does a rank run without gradsieve's compressor",
    )


@pytest.mark.parametrize("explicit", [False, True], ids=["step", "synchronize"])
def test_groups_with_different_gradients_on_different_ranks_are_named(tmp_path: Path, explicit: bool) -> None:
    ends_with(
        f"""
class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.left, self.right = nn.Linear(60, 10), nn.Linear(60, 10), nn.Linear(60, 10)
    def forward(self, x):
        with_right = hvd.rank() != 0 or not self.diverge
        return self.shared(x) + self.left(x) + (self.right(x) if with_right else 0)

model = Branches()
group = [*model.left.parameters(), *model.right.parameters()]
optimizer = distribute(hvd, model, laplace(timeout_seconds=5), groups=[group])
model.diverge = False
train(hvd, model, optimizer, steps=1)
model.diverge = True
optimizer.zero_grad()
loss_of(model, 1, hvd.rank()).backward()
if {explicit}:
    optimizer.synchronize()
optimizer.step()
""",
        tmp_path,
        "no answer from at least one rank within 5 s",
        "'left.weight'",
        "the ranks differ in which parameters receive a gradient while groups is set",
    )


def test_joining_ranks_get_a_clear_error(tmp_path: Path) -> None:
    ends_with(
        """
model = perceptron()
optimizer = distribute(hvd, model, laplace(timeout_seconds=20))
train(hvd, model, optimizer, steps=3 + hvd.rank())
hvd.join()
""",
        tmp_path,
        "ExchangeError",
        "a rank called hvd.join()",
        "Give every rank the same number of batches",
    )


def test_a_rank_that_leaves_the_training_loop_is_noticed(tmp_path: Path) -> None:
    ends_with(
        """
import time
model = perceptron()
optimizer = distribute(hvd, model, laplace(timeout_seconds=5))
train(hvd, model, optimizer, steps=3 + hvd.rank())
time.sleep(60)
""",
        tmp_path,
        "ExchangeError",
        "no answer from at least one rank within 5 s for '0.weight', '2.weight'",
    )


def test_a_rank_that_is_stopped_ends_the_job(tmp_path: Path) -> None:
    ends_with(
        """
import os, signal
model = perceptron()
optimizer = distribute(hvd, model, laplace(timeout_seconds=5))
train(hvd, model, optimizer, steps=2)
if hvd.rank() == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
train(hvd, model, optimizer, steps=2)
""",
        tmp_path,
        "no answer from at least one rank within 5 s",
    )
