"""Four processes behind links of their own follow these from 1 000 to 50 Mbit/s and back."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise

import pytest
import reshaped_link
from links import skip_where_refused

pytest.importorskip("mpi4py", reason="NO MPI HERE: mpi4py is not installed")
pytestmark = pytest.mark.timeout(330)
STEPS = 20  # in which it is to be followed down
DIVIDING_MBIT = 75
"""What the slow link cannot give; how much of the fast one four ranks can use, two cores say."""


@pytest.fixture(scope="module")
def told():
    """What rank 0 knew after each step, in the order of phases."""
    ranks = ["gradsieve_hvd.cli", "run", "-np", "4", "--link", "1gbit", "--timeout", "280"]
    program = [sys.executable, reshaped_link.__file__, "25@1000", "25@50", f"300@1000>{DIVIDING_MBIT}"]
    command = [sys.executable, "-m", *ranks, "--", *program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=310)
    skip_where_refused(done.returncode, done.stderr)
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    return steps[:25], steps[25:50], steps[50:]


def shown(phase):
    """Return a line of what was known after each step, short enough for a report."""
    return "; ".join(
        "{path} {mbit:.0f} {start_up_ms:.1f} ms, {milliseconds}".format(**step) for step in phase
    )


def test_a_link_that_becomes_slow_is_found_out_and_nothing_travels_whole(told):
    for step in told[1][STEPS - 1 :]:
        assert 10 < step["mbit"] < DIVIDING_MBIT, shown(told[1])  # less where ranks wait for a core
        assert step["path"] != "dense", shown(told[1])


def test_a_link_that_recovers_is_found_out(told):
    """However long that takes: ranks that wait for a core among other programs look like a slow link."""
    assert told[2][-1]["mbit"] > DIVIDING_MBIT, shown(told[2])


def test_the_path_does_not_go_back_and_forth(told):
    """Tried paths apart: they are in use to be measured."""
    slow = [step["path"] for step in told[1][STEPS // 2 :] if not step["trying"]]
    assert sum(before != after for before, after in pairwise(slow)) <= 1, shown(told[1])
    everything = [step["path"] for phase in told for step in phase if not step["trying"]]
    assert sum(before != after for before, after in pairwise(everything)) <= 5, [
        shown(phase) for phase in told
    ]
