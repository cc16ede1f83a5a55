"""Agents, a coordinator or whole hosts that stand still: seconds cost a job nothing, more costs a restart."""

import contextlib
import os
import signal
import time

import pytest
from spread_jobs import side_by_side

pytest.importorskip("mpi4py", reason="NO MPI HERE: mpi4py is not installed")
pytestmark = pytest.mark.timeout(180)
SLEEP = "import time; print('ready', flush=True); time.sleep(1000)"


def test_an_agent_that_stands_still_for_nine_seconds_is_not_given_up(job):
    agents = [job.agent(host) for host in ("h0", "h1")]
    coordinator = job.coordinator("--hosts", "h0,h1", "--", "python", "-c", SLEEP)
    coordinator.wait_for("ready", times=2)
    agents[1].signal(signal.SIGSTOP)
    time.sleep(9)
    agents[1].signal(signal.SIGCONT)
    time.sleep(2)
    assert "connection lost" not in coordinator.text()
    assert coordinator.text().count("starting 2 ranks") == 1


# Ranks train until a file says enough.
TRAIN = """
import os, sys, time
from mpi4py import MPI
world, step = MPI.COMM_WORLD, 0
while not world.allreduce(os.path.exists(sys.argv[1])):
    step += 1
    if step == 3:
        print("generation", os.environ["GRADSIEVE_JOB_GENERATION"], "trains", flush=True)
    time.sleep(0.1)
"""


@side_by_side
def test_a_coordinator_that_stands_still_until_its_agents_end_the_ranks_starts_them_anew(job):
    enough = job.folder / "enough"
    agents = [job.agent(host, "--once") for host in ("h0", "h1")]
    coordinator = job.coordinator("--hosts", "h0,h1", "--", "python", "-c", TRAIN, str(enough))
    coordinator.wait_for("generation 1 trains", times=2)
    coordinator.signal(signal.SIGSTOP)
    for agent in agents:
        agent.wait_for("no coordinator any more: ending what mpirun has started here")
    coordinator.signal(signal.SIGCONT)
    coordinator.wait_for("Lost: mpirun returned 0, but its daemons on h0, h1 did not end well")
    coordinator.wait_for("generation 2 trains", times=2)
    enough.touch()
    assert coordinator.wait(60) == 0, coordinator.text()
    assert [agent.wait(30) for agent in agents] == [0, 0]


@side_by_side
def test_an_agent_that_stands_still_for_too_long_is_fenced_and_a_new_one_trains_in_its_place(job):
    stand_still_for_too_long(job, whole=False)


@side_by_side
def test_a_host_that_stands_still_for_too_long_is_fenced_and_a_new_agent_trains_in_its_place(job):
    stand_still_for_too_long(job, whole=True)


def stand_still_for_too_long(job, *, whole):
    enough = job.folder / "enough"
    agents = [job.agent(host) for host in ("h0", "h1")]
    coordinator = job.coordinator("--hosts", "h0,h1", "--", "python", "-c", TRAIN, str(enough))
    coordinator.wait_for("generation 1 trains", times=2)
    still = [agents[1].process.pid, *(job.left_over_ranks(host="h1") if whole else [])]
    for process in still:
        os.kill(process, signal.SIGSTOP)
    coordinator.wait_for("Lost: lost h1")
    assert job.left_over_ranks(host="h0") == []
    job.agent("h1")
    coordinator.wait_for("generation 2 trains", 90, times=2)
    for process in still:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)
    assert agents[1].wait(30) == 17, agents[1].text()
    assert job.left_over_ranks(generation="1") == [], "it ends what runs there before itself"
    enough.touch()
    assert coordinator.wait(60) == 0, coordinator.text()
    assert coordinator.text().count("starting 2 ranks") == 2
