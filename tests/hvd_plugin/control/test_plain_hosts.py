"""A job on plain hosts: no Kubernetes, no SSH, ranks on other hosts all the same."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("mpi4py", reason="NO MPI HERE: mpi4py is not installed")
pytestmark = pytest.mark.timeout(180)

WHERE = """
import os, socket
from mpi4py import MPI
world = MPI.COMM_WORLD
print("rank", world.rank, "on", os.environ["GRADSIEVE_HOST"], "sum", world.allreduce(world.rank),
      "generation", os.environ["GRADSIEVE_JOB_GENERATION"], socket.gethostname(), flush=True)
"""

ALLREDUCE = """
import horovod.torch as hvd, os, socket, torch
hvd.init()
total = hvd.allreduce(torch.tensor([float(hvd.rank() + 1)]), op=hvd.Sum)
print("allreduce", hvd.rank(), hvd.size(), hvd.local_size(), total.item(), socket.gethostname(), flush=True)
"""

# The ranks do not talk, not even before rank 1 fails: a connection over TCP that is closed makes rank 0 fail
# as well, which might be heard of first. MPI's own start ends at the same time on both.
FAIL = """
import os, time
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1:
    {failure}
time.sleep(100)
"""

SLEEP = "import time; print('ready', flush=True); time.sleep(1000)"


def test_ranks_on_several_hosts_form_one_world(spread_job):
    job = spread_job
    agents = [job.agent("h0", "--once", slots=2), job.agent("h1", "--once")]
    coordinator = job.coordinator("--hosts", "h0:2,h1:1", "--", "python", "-c", WHERE)
    assert coordinator.wait() == 0, coordinator.text()
    assert sorted(coordinator.lines("[")) == [
        f"[{rank}] rank {rank} on {host} sum 3 generation 1 {host}"
        for rank, host in enumerate(["h0", "h0", "h1"])
    ]
    assert [agent.wait() for agent in agents] == [0, 0]
    assert job.left_over() == []


def test_horovod_reduces_across_three_hosts(spread_job):
    job = spread_job
    agents = [job.agent(host, "--once") for host in ("h0", "h1", "h2")]
    coordinator = job.coordinator("--hosts", "h0,h1,h2", "--", "python", "-c", ALLREDUCE)
    assert coordinator.wait(150) == 0, coordinator.text()
    assert sorted(coordinator.lines("[")) == [
        f"[{rank}] allreduce {rank} 3 1 6.0 h{rank}" for rank in range(3)
    ]
    assert [agent.wait() for agent in agents] == [0, 0, 0]
    assert job.left_over() == []


@pytest.mark.parametrize(
    ("failure", "status", "said"),
    [
        pytest.param("raise ValueError('boom')", 1, "rank 1 exited with status 1", id="exception"),
        pytest.param("raise SystemExit(3)", 3, "rank 1 exited with status 3", id="status"),
        pytest.param("os.kill(os.getpid(), 9)", 137, "rank 1 was ended by signal 9", id="signal"),
    ],
)
def test_the_failing_ranks_status_comes_back_everywhere(spread_job, failure, status, said):
    job = spread_job
    program = FAIL.format(failure=failure)
    agents = [job.agent(host, "--once") for host in ("h0", "h1")]
    coordinator = job.coordinator("--hosts", "h0,h1", "--", "python", "-c", program)
    assert coordinator.wait() == status, coordinator.text()
    assert f"gradsieve coordinator: Failed: {said}" in coordinator.text(), coordinator.text()
    assert [agent.wait() for agent in agents] == [status, status]
    assert job.left_over() == []


def test_agents_stay_for_the_next_job(job):
    agents = [job.agent("h0", slots=2)]
    for _ in range(2):
        coordinator = job.coordinator("--hosts", "h0:2", "--", "python", "-c", WHERE)
        assert coordinator.wait() == 0, coordinator.text()
    for agent in agents:
        agent.signal(signal.SIGTERM)
    assert [agent.wait() for agent in agents] == [143]
    assert job.left_over() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_coordinator_that_is_told_to_end_ends_the_ranks_first(job, number):
    agents = [job.agent(host, "--once") for host in ("h0", "h1")]
    coordinator = job.coordinator("--hosts", "h0,h1", "--", "python", "-c", SLEEP)
    coordinator.wait_for("ready", times=2)
    coordinator.signal(number)
    assert coordinator.wait(30) == 143, coordinator.text()
    assert [agent.wait() for agent in agents] == [143, 143]
    assert job.left_over() == []


def test_an_agent_that_is_told_to_end_leaves_no_rank(job):
    agents = [job.agent(host) for host in ("h0", "h1")]
    coordinator = job.coordinator("--hosts", "h0,h1", "--restarts", "0", "--", "python", "-c", SLEEP)
    coordinator.wait_for("ready", times=2)
    agents[1].signal(signal.SIGTERM)
    assert agents[1].wait(30) == 143
    assert coordinator.wait(30) == 1
    assert "lost h1: the ranks were ended on all hosts; no restart is left" in coordinator.text()
    agents[0].signal(signal.SIGTERM)
    assert agents[0].wait(30) == 143
    assert job.left_over() == []


def test_agents_listen_on_no_port(job):
    agent = job.agent("h0")
    coordinator = job.coordinator("--hosts", "h0,h1", "--", "true")
    agent.wait_for("registered")
    inodes = {str(descriptor.readlink()) for descriptor in Path(f"/proc/{agent.process.pid}/fd").iterdir()}
    listening = [
        line.split()[9]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{agent.process.pid}/net/{table}").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    ]
    assert listening, "the coordinator listens, so the table is read the right way"
    assert not inodes & {f"socket:[{inode}]" for inode in listening}
    assert coordinator.process.poll() is None


def test_hosts_that_do_not_come_are_named(job):
    job.agent("h0")
    coordinator = job.coordinator("--hosts", "h0,h1,h2", "--register-timeout", "10", "--", "true")
    assert coordinator.wait(60) == 1
    assert "waiting for h1, h2 for 10 s: giving up" in coordinator.text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--hosts", "h0"], "no command to run"),
        (["--hosts", "h0,h0", "--", "true"], "names a host twice"),
        (["--hosts", "h0:0", "--", "true"], "must be NAME:SLOTS"),
        (["--", "true"], "a command without --hosts"),
        (["--hosts", "h0", "--min-hosts", "2", "--", "true"], "only 1 hosts are named"),
    ],
)
def test_a_wrong_command_line_says_what_to_write(job, arguments, said):
    coordinator = job.coordinator(*arguments)
    assert coordinator.wait() == 2
    assert said in coordinator.text()


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "gradsieve_hvd", "--help"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert {"agent", "coordinator", "certificates", "launch-agent"} <= set(done.stdout.split())


# In the first generation the ranks wait for ever; in the next they go through.
AGAIN = """
import os, time
import horovod.torch as hvd, torch
hvd.init()
generation = int(os.environ["GRADSIEVE_JOB_GENERATION"])
print("generation", generation, "size", hvd.size(), "host", os.environ["GRADSIEVE_HOST"], flush=True)
while generation == 1:
    hvd.allreduce(torch.ones(1), name="wait")
    time.sleep(0.1)
print("sum", hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), flush=True)
"""


@pytest.mark.timeout(560)
@pytest.mark.parametrize("without", [False, True], ids=["with a new agent", "without the lost host"])
def test_after_a_lost_host_the_survivors_start_anew(spread_job, without):
    job = spread_job
    agents = {host: job.agent(host) for host in ("h0", "h1", "h2")}
    options = ["--hosts", "h0,h1,h2", *(["--min-hosts", "2"] if without else [])]
    coordinator = job.coordinator(*options, "--", "python", "-c", AGAIN)
    coordinator.wait_for("generation 1 size 3", 150, times=3)
    agents["h1"].signal(signal.SIGKILL)
    coordinator.wait_for("Lost: lost h1: the ranks were ended on all hosts")
    for survivor in ("h0", "h2"):
        assert job.left_over_ranks(generation="1", host=survivor) == []
    # Those of a host whose agent is killed are ended by Open MPI's daemon, which nobody can wait for.
    until = time.monotonic() + 10
    while job.left_over_ranks(generation="1"):
        assert time.monotonic() < until, job.left_over_ranks(generation="1")
        time.sleep(0.1)
    if not without:
        coordinator.wait_for("roster of generation 2")
        job.agent("h1")
    assert coordinator.wait(150) == 0, coordinator.text()
    size = 2 if without else 3
    assert coordinator.text().count(f"generation 2 size {size}") == size
    assert coordinator.text().count(f"sum {size}.0") == size
    assert [agents[host].process.poll() for host in ("h0", "h2")] == [None, None]
