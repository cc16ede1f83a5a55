"""Agents on a busy machine do not run for seconds while their ranks start: that costs no job a restart."""

import signal
import time

import pytest

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
