"""However a job is ended, no process and no file of it is left."""

import os
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("mpi4py", reason="NO MPI HERE: mpi4py is not installed")
pytestmark = pytest.mark.timeout(120)

# A rank that ignores requests to end and has a daemon of its own, outside its session and orphaned.
STUBBORN = """
import os, signal, subprocess, sys, time
subprocess.run(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 </dev/null &"])
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(os.environ["READY"] + os.environ["OMPI_COMM_WORLD_RANK"], "w").close()
time.sleep(1000)
"""

# More than all pipes on the way hold together.
TALKATIVE = "import time; print('line\\n' * 1_000_000, flush=True); time.sleep(1000)"


def start(launcher, folder, *arguments, kind="stubborn"):
    ready = folder / "ready"
    process = launcher.start("-np", "2", *arguments, "--", "python", "-c", STUBBORN, kind, READY=str(ready))
    until = time.monotonic() + 60
    while not all(Path(f"{ready}{rank}").exists() for rank in range(2)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything(launcher, tmp_path, number):
    process = start(launcher, tmp_path, kind="obedient")
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "Traceback" not in err
    assert launcher.left_over() == []


def test_ranks_that_do_not_want_to_end_are_killed(launcher, tmp_path):
    process = start(launcher, tmp_path)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert launcher.left_over() == []


def test_nothing_outlives_a_killed_launcher(launcher, tmp_path):
    process = start(launcher, tmp_path)
    process.kill()
    process.communicate(timeout=60)
    assert launcher.left_over() == []


def test_nothing_outlives_a_launcher_whose_reader_has_stopped_reading(launcher):
    process = launcher.start("-np", "2", "--", "python", "-c", TALKATIVE)
    process.stdout.read(1)
    time.sleep(1)
    process.kill()
    assert launcher.left_over() == []


def test_a_job_ends_when_nobody_reads_its_output_any_more(launcher):
    process = launcher.start("-np", "2", "--", "python", "-c", TALKATIVE)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 128 + signal.SIGPIPE
    assert launcher.left_over() == []


def test_what_a_rank_left_in_the_background_ends_with_the_job(launcher):
    done = launcher.run("-np", "2", "--", "sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo started")
    assert done.returncode == 0
    assert done.stdout == "started\n" * 2
    assert launcher.left_over() == []


def ranks_and_mpirun(launcher):
    return [process for process in launcher.left_over(0) if "mpirun" in process or "bootstrap" in process]


def test_ranks_end_even_if_the_supervisor_is_killed(launcher, tmp_path):
    process = start(launcher, tmp_path, kind="obedient")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "supervisor ended unexpectedly" in err
    until = time.monotonic() + 30
    while (left := ranks_and_mpirun(launcher)) and time.monotonic() < until:
        time.sleep(0.1)
    assert left == []
