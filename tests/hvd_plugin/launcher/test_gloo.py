"""Ranks under Horovod's Gloo controller."""

import re

import pytest

from gradsieve_hvd.launcher.gloo import culprit

pytest.importorskip("horovod.torch", reason="NO HOROVOD HERE: `gradsieve build-horovod` builds it")
pytestmark = pytest.mark.timeout(180)

SUM = """
import sys, horovod.torch as hvd, torch
hvd.init()
total = hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum, name="a").item()
print("rank", hvd.rank(), "local", hvd.local_size(), "sum", total, "gloo", hvd.gloo_enabled(), flush=True)
if len(sys.argv) > 1 and hvd.rank() == 1:
    sys.exit(int(sys.argv[1]))
if len(sys.argv) > 1:
    hvd.allreduce(torch.ones(1), name="b")
"""

# Rank 1 does not want to end; rank 0 fails when it is that far.
STUBBORN = """
import os, pathlib, signal, sys, time
ready = pathlib.Path(sys.argv[1])
if os.environ["HOROVOD_RANK"] == "1":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.touch()
    time.sleep(1000)
while not ready.exists():
    time.sleep(0.05)
sys.exit(3)
"""


def test_ranks_meet_through_gloo(launcher):
    done = launcher.run("-np", "2", "--gloo", "--tag-output", "--", "python", "-c", SUM)
    assert sorted(done.stdout.splitlines()) == [f"[{r}] rank {r} local 2 sum 1.0 gloo True" for r in range(2)]
    assert done.returncode == 0
    assert launcher.left_over() == []


def test_the_first_rank_to_fail_gives_the_status(launcher):
    done = launcher.run("-np", "2", "--gloo", "--", "python", "-c", SUM, "3")
    assert done.returncode == 3
    # Rank 0 may be ended in the middle of a line about its lost peer.
    assert done.stderr.endswith("gradsieve run: rank 1 exited with status 3\n")
    assert launcher.left_over() == []


@pytest.mark.parametrize(
    ("failed", "first"), [({0: 1, 1: 3}, 1), ({1: 3, 0: 1}, 1), ({2: 1, 1: 1}, 1), ({0: 1, 3: -9}, 3)]
)
def test_of_ranks_that_end_together_the_one_that_did_not_just_miss_a_peer_is_named(failed, first):
    assert culprit(failed) == first


def test_when_a_rank_has_failed_those_that_do_not_want_to_end_are_killed(launcher, tmp_path):
    done = launcher.run("-np", "2", "--gloo", "--", "python", "-c", STUBBORN, str(tmp_path / "ready"))
    assert done.returncode == 3
    assert done.stderr == "gradsieve run: rank 0 exited with status 3\n"
    assert launcher.left_over() == []


def test_ranks_that_end_before_the_job_is_watched_end_it(launcher):
    done = launcher.run("-np", "2", "--gloo", "--timeout", "60", "--", "sh", "-c", "echo hi")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hi\nhi\n", "")
    assert launcher.left_over() == []


def test_ranks_that_fail_before_the_job_is_watched_give_the_status(launcher):
    done = launcher.run("-np", "2", "--gloo", "--timeout", "60", "--", "sh", "-c", "exit 3")
    assert done.returncode == 3
    assert re.fullmatch(r"gradsieve run: rank [01] exited with status 3\n", done.stderr)
    assert launcher.left_over() == []


def test_ranks_meet_through_gloo_on_an_emulated_link(launcher, emulated_link_allowed):
    # Tagged, because only then do lines of different ranks arrive whole.
    done = launcher.run("-np", "2", "--gloo", "--link", "100mbit", "--tag-output", "--", "python", "-c", SUM)
    assert sorted(done.stdout.splitlines()) == [f"[{r}] rank {r} local 1 sum 1.0 gloo True" for r in range(2)]
    assert launcher.left_over() == []
