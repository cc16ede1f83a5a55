"""A job that was stopped for a while goes on: that time is no part of any deadline."""

from pathlib import Path

import pytest
from real_ranks import GLOO, ranks_of, run_alone

from gradsieve_hvd.transport.running_clock import RunningClock

SUPPORT = Path(__file__).parents[1] / "support"

# Rank 0 waits for rank 1 when both are stopped, for longer than the time-out.
STOPPED = f"""
import sys
sys.path.insert(0, {str(SUPPORT)!r})
import os, subprocess, time
import horovod.torch as hvd
from training import *
hvd.init()
model = perceptron()
optimizer = distribute(hvd, model, laplace(timeout_seconds=8))
train(hvd, model, optimizer, steps=2)
processes = " ".join(map(str, hvd.allgather_object(os.getpid())))
before = time.monotonic()
if hvd.rank() == 0:
    subprocess.Popen(["sh", "-c", f"sleep 1; kill -STOP {{processes}}; sleep 11; kill -CONT {{processes}}"])
else:
    time.sleep(2)
train(hvd, model, optimizer, steps=2)
assert time.monotonic() - before > 8, "it was not stopped while rank 0 waited"
print("went on", flush=True)
"""


@pytest.mark.timeout(150)
@pytest.mark.parametrize("job", ["2", GLOO])
def test_ranks_that_were_stopped_together_go_on(job: str, tmp_path: Path) -> None:
    status, output = run_alone(STOPPED, ranks_of(job), tmp_path, gloo=job == GLOO)
    assert status == 0, output
    assert output.count("went on") == 2


def test_a_running_clock_does_not_count_long_gaps() -> None:
    now = 100.0
    clock = RunningClock(lambda: now)
    for moment in (100.5, 101.5, 141.5, 142.0):
        now = moment
        seconds = clock.seconds()
    assert seconds == 0.5 + 1.0 + 2.0 + 0.5
