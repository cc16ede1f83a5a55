"""Who ends a job while its ranks are only being started gets none started, and need not wait."""

import os
import signal
import time

import pytest
from control_job import changed, roster

from gradsieve_hvd.launcher.mpi import find_program

pytestmark = pytest.mark.timeout(180)
SLEEP = ["python", "-c", "import time; print('ready', flush=True); time.sleep(1000)"]
IMPATIENT = "import gradsieve_hvd.control.coordinator as it; it._STOP_SECONDS = 1.0"


def slow_mpirun(folder, asked):
    """Return a change to an mpirun that takes seconds to tell its version, and is the real one else."""
    program = folder / "mpirun"
    real = find_program("mpirun", os.environ["PATH"])
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && {{ touch {asked}; sleep 3; }}\nexec {real} "$@"\n'
    )
    program.chmod(0o755)
    return f"import gradsieve_hvd.control.mpi_ranks as it; it.find_program = lambda *_: {str(program)!r}"


def test_a_stop_that_comes_before_mpirun_is_started_starts_no_rank(job, tmp_path):
    asked, up = tmp_path / "asked", tmp_path / "up"
    job.agent("h0", "--uid", "uid-0")
    coordinator = job.coordinator(**changed(tmp_path, slow_mpirun(tmp_path, asked)))
    coordinator.wait_for("listening", times=2)
    command = ["sh", "-c", f"touch {up}; sleep 1000"]
    assert job.call("PUT", "/v1/roster", roster(1, command, {"h0": "uid-0"}))[0] == 200
    until = time.monotonic() + 60
    while not asked.exists():
        assert time.monotonic() < until, coordinator.text()
        time.sleep(0.05)
    assert job.call("POST", "/v1/stop", {"reason": "suspended"}) == (200, {"state": "Waiting"})
    assert not up.exists(), "ranks were started that nobody wants"
    assert job.call("PUT", "/v1/roster", roster(2, ["true"], {"h0": "uid-0"}))[0] == 200
    job.wait_for("Succeeded")
    assert coordinator.wait(60) == 0, coordinator.text()


def test_a_coordinator_that_waits_for_a_silent_hosts_ranks_ends_at_once_when_it_is_told_to(job):
    agents = [job.agent(host, "--once") for host in ("h0", "h1")]
    coordinator = job.coordinator("--hosts", "h0,h1", "--min-hosts", "1", "--", *SLEEP)
    coordinator.wait_for("ready", times=2)
    agents[1].signal(signal.SIGSTOP)
    coordinator.wait_for("ranks may still run on h1, which is silent: waiting")
    coordinator.signal(signal.SIGTERM)
    told = time.monotonic()
    assert coordinator.wait(60) == 143, coordinator.text()
    assert time.monotonic() - told < 15.0, "it waited for the silent host first"
    assert "Traceback" not in coordinator.text()
    assert agents[0].wait(30) == 143, "it was told that the job is over"


def test_ranks_that_do_not_end_in_time_do_not_keep_a_coordinator_from_its_end(job, tmp_path):
    agents = [job.agent(host, "--once") for host in ("h0", "h1")]
    coordinator = job.coordinator("--hosts", "h0,h1", "--", *SLEEP, **changed(tmp_path, IMPATIENT))
    coordinator.wait_for("ready", times=2)
    agents[1].signal(signal.SIGSTOP)
    coordinator.signal(signal.SIGTERM)
    assert coordinator.wait(60) == 143, coordinator.text()
    assert "some ranks have not ended after 1 s" in coordinator.text()
    assert "Traceback" not in coordinator.text()
    agents[1].signal(signal.SIGCONT)
    assert [agent.wait(30) for agent in agents] == [143, 143], "both were told that the job is over"
    assert job.left_over() == []
