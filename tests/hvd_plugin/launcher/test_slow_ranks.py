"""``gradsieve run --slow``: ranks that compute slower, by quotas of processor time."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.launcher import Job, Straggler, parse_straggler
from gradsieve_hvd.launcher.stragglers import full_quota, slowness
from gradsieve_hvd.launcher.throttle import Budget

BURN = """
import json, os, time
rank = int(os.environ["RANK"])
time.sleep(1.0)  # until it is known whose process this is
began, used = time.monotonic(), time.process_time()
while time.monotonic() - began < 2.0:
    pass
print(json.dumps([rank, (time.process_time() - used) / (time.monotonic() - began)]), flush=True)
"""

FACTORS = st.floats(1, 16)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("3:4x", Straggler(3, 4.0)),
        ("0:1.5", Straggler(0, 1.5)),
        ("wander:4x", Straggler("wander", 4.0)),
        ("transient:3X", Straggler("transient", 3.0)),
    ],
)
def test_slow_ranks_are_written_with_their_factor(text, meant):
    assert parse_straggler(text) == meant
    assert parse_straggler(str(meant)) == meant


@pytest.mark.parametrize("text", ["3", "4x", "3:0.5x", "last:4x", "3:", "-1:2x", "3:nanx", ""])
def test_what_is_not_understood_is_named(text):
    with pytest.raises(ConfigurationError, match="is not understood: write RANK:FACTOR"):
        parse_straggler(text)


def test_a_slow_rank_must_be_one_of_the_ranks():
    with pytest.raises(ConfigurationError, match="--slow 4:2x: there is no rank 4; ranks are 0 to 3"):
        Job(("x",), 4, slow=(Straggler(4, 2.0),))


def test_a_job_with_slow_ranks_survives_json():
    job = Job(("x",), 4, slow=(Straggler(3, 4.0), Straggler("wander", 2.0)))
    assert Job.from_json(job.to_json()) == job


def test_a_wandering_straggler_is_one_rank_at_a_time_and_visits_all():
    slow = [Straggler("wander", 4.0)]
    visited = set()
    for spell in range(40):
        factors = [slowness(slow, rank, 4, spell * 15.0 + 7.0) for rank in range(4)]
        assert sorted(factors) == [1.0, 1.0, 1.0, 4.0]
        assert factors == [slowness(slow, rank, 4, spell * 15.0 + 14.9) for rank in range(4)]
        visited.add(factors.index(4.0))
    assert visited == {0, 1, 2, 3}


def test_transient_stragglers_are_slow_a_fifth_of_the_time_each_by_itself():
    times = [
        [slowness([Straggler("transient", 3.0)], rank, 2, second + 0.5) == 3.0 for second in range(2_000)]
        for rank in range(2)
    ]
    for mine in times:
        assert 0.17 < sum(mine) / len(mine) < 0.23
    assert times[0] != times[1]


@given(st.lists(FACTORS, min_size=1, max_size=16), st.integers(1, 64))
def test_quotas_leave_room_and_differ_by_the_factors(factors, cores):
    slow = [Straggler(rank, factor) for rank, factor in enumerate(factors)]
    full = full_quota(slow, len(factors), cores)
    given_out = sum(full / slowness(slow, rank, len(factors), 0.0) for rank in range(len(factors)))
    assert given_out <= 0.85 * cores * (1 + 1e-9)
    assert 0 < full <= max(1, cores // len(factors))


@given(st.floats(0.02, 1), st.lists(st.tuples(st.floats(0.001, 0.05), st.booleans()), max_size=200))
def test_a_rank_uses_no_more_than_its_quota_however_long_it_has_waited(quota, ticks):
    """From any moment on: its quota's part of the time, 20 ms' worth, and a tick in which nobody looked."""
    budget, running = Budget(), False
    at, used = [0.0], [0.0]
    for elapsed, busy in ticks:
        uses = elapsed if running and busy else 0.0
        running = budget.allows(uses, elapsed, quota)
        at.append(at[-1] + elapsed)
        used.append(used[-1] + uses)
    excess = [mine - quota * time for mine, time in zip(used, at, strict=True)]
    lowest = list(itertools.accumulate(excess, min))
    assert all(now - before <= quota * 0.02 + 0.05 + 1e-9 for now, before in zip(excess, lowest, strict=True))


def test_a_rank_that_always_computes_gets_all_of_its_quota():
    budget, running, used = Budget(), False, 0.0
    for _ in range(10_000):
        uses = 0.004 if running else 0.0
        used += uses
        running = budget.allows(uses, 0.004, 0.13)
    assert used == pytest.approx(0.13 * 40, rel=0.01)


@pytest.mark.timeout(120)
def test_a_slow_rank_gets_its_part_of_the_processor(launcher):
    pytest.importorskip("mpi4py", reason="NO MPI HERE: mpi4py is not installed")
    done = launcher.run("-np", "2", "--slow", "1:20x", "--", "python", "-c", BURN)
    assert done.returncode == 0, done.stderr
    shares = dict(json.loads(line) for line in done.stdout.splitlines())
    # Others may use this machine, too, so that a rank gets less; never more than a tick and what is saved.
    assert shares[1] < 0.08
    assert shares[0] > 1.5 * shares[1]
    assert "slow: 1:20x" in done.stderr
    assert launcher.left_over() == []


@pytest.mark.timeout(120)
def test_a_stopped_rank_ends_with_its_job(launcher):
    pytest.importorskip("mpi4py", reason="NO MPI HERE: mpi4py is not installed")
    endless = "while True: pass"
    done = launcher.run("-np", "2", "--slow", "0:100x", "--timeout", "2", "--", "python", "-c", endless)
    assert done.returncode == 124
    assert launcher.left_over() == []
