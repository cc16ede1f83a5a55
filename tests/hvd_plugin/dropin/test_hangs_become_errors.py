"""What would wait for ever in plain Horovod ends here, with the reason, within the time-out."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_ranks import GLOO, JOBS, ranks_of, run_alone

SUPPORT = Path(__file__).parents[2] / "support"

PREAMBLE = f"""
import sys
sys.path.insert(0, {str(SUPPORT)!r})
import horovod.torch as hvd, torch
from training import *
hvd.init()
# First steps import and compile for seconds: not while an exchange has but three.
model = perceptron()
train(hvd, model, distribute(hvd, model, laplace()), steps=2)
"""

pytestmark = pytest.mark.timeout(150)


on_every_job = pytest.mark.parametrize("job", JOBS)


def ends_with(program: str, folder: Path, *expected: str, job: str = "2") -> None:
    status, output = run_alone(PREAMBLE + program, ranks_of(job), folder, gloo=job == GLOO)
    assert status not in (0, 124), f"the job ended with status {status}:\n{output}"
    for text in expected:
        assert text in output, f"{text!r} is missing in:\n{output}"


@on_every_job
def test_a_rank_that_runs_without_gradsieve_is_found_out(job: str, tmp_path: Path) -> None:
    ends_with(
        """
model, last = perceptron(), hvd.rank() == hvd.size() - 1
optimizer = distribute(hvd, model, hvd.Compression.none if last else laplace(timeout_seconds=3))
train(hvd, model, optimizer)
""",
        tmp_path,
        "RankMismatch",
        "Does a rank run without gradsieve's compressor",
        job=job,
    )


@pytest.mark.parametrize(("job", "explicit"), [("2", False), ("4", True)], ids=["2-step", "4-synchronize"])
def test_groups_with_different_gradients_on_different_ranks_are_named(
    job: str, tmp_path: Path, explicit: bool
) -> None:
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
optimizer = distribute(hvd, model, laplace(timeout_seconds=3), groups=[group])
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
        "no answer from at least one rank within 3 s",
        "'left.weight'",
        "the ranks differ in which parameters receive a gradient while groups is set",
        job=job,
    )


JOINED = (
    "ExchangeError",
    "a rank called hvd.join()",
    "Give every rank the same number of batches",
)


@on_every_job
def test_joining_ranks_get_a_clear_error(job: str, tmp_path: Path) -> None:
    """Payloads differ in size from step to step here, as they mostly do."""
    ends_with(
        """
from gradsieve_hvd import DensityWarmup
model = perceptron()
optimizer = distribute(hvd, model, laplace(warmup=DensityWarmup(start=0.5, steps=50)))
train(hvd, model, optimizer, steps=3 + hvd.rank())
hvd.join()
""",
        tmp_path,
        *JOINED,
        job=job,
    )


@pytest.mark.xfail(
    reason="Horovod repeats an allgather of unchanged sizes from its response cache, where it does not look "
    "for joined ranks; their background thread then dies, or corrupts memory"
)
def test_joining_ranks_get_a_clear_error_also_when_payloads_stay_the_same(tmp_path: Path) -> None:
    ends_with(
        """
model = perceptron()
optimizer = distribute(hvd, model, lossless())
for _ in range(3 + hvd.rank()):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
hvd.join()
""",
        tmp_path,
        *JOINED,
    )


def test_a_rank_that_leaves_the_training_loop_is_noticed(tmp_path: Path) -> None:
    ends_with(
        """
import time
model = perceptron()
optimizer = distribute(hvd, model, laplace(timeout_seconds=3))
train(hvd, model, optimizer, steps=3 + hvd.rank())
time.sleep(60)
""",
        tmp_path,
        "ExchangeError",
        "no answer from at least one rank within 3 s for '0.weight', '2.weight'",
    )


def test_a_rank_that_is_stopped_ends_the_job(tmp_path: Path) -> None:
    ends_with(
        """
import os, signal
model = perceptron()
optimizer = distribute(hvd, model, laplace(timeout_seconds=3))
train(hvd, model, optimizer, steps=2)
if hvd.rank() == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
train(hvd, model, optimizer, steps=2)
""",
        tmp_path,
        "no answer from at least one rank within 3 s",
    )
