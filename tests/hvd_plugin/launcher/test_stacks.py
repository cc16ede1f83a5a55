"""A job that hangs shows where every rank is."""

import signal
import time

import pytest

pytest.importorskip("mpi4py", reason="NO MPI HERE: mpi4py is not installed")
pytestmark = pytest.mark.timeout(120)

HANG = """
from mpi4py import MPI
import time
def waits_for_the_others():
    print("ready", flush=True)
    MPI.COMM_WORLD.barrier()
def never_comes():
    print("ready", flush=True)
    time.sleep(1000)
never_comes() if MPI.COMM_WORLD.rank == 2 else waits_for_the_others()
"""


def sections(err):
    found = {}
    for line in err.splitlines():
        if line.startswith("--- rank "):
            rank = int(line.split()[2].strip(",:"))
            found[rank] = ""
        elif found:
            found[rank] += line + "\n"
    return found


def test_a_time_out_shows_the_stack_of_every_rank_and_ends_the_job(launcher):
    done = launcher.run("-np", "4", "--timeout", "25", "--", "python", "-c", HANG)
    assert done.returncode == 124
    stacks = sections(done.stderr)
    assert set(stacks) == {0, 1, 2, 3}
    for rank, stack in stacks.items():
        assert ("never_comes" if rank == 2 else "waits_for_the_others") in stack
    assert launcher.left_over() == []


def test_python_below_another_program_shows_its_stack_too(launcher, tmp_path):
    script = tmp_path / "hang.py"
    script.write_text("import time\ndef hangs(): time.sleep(1000)\nhangs()\n")
    done = launcher.run("-np", "2", "--timeout", "8", "--", "sh", "-c", f"python3 {script}; true")
    assert done.returncode == 124
    assert [stack.count("in hangs") for stack in sections(done.stderr).values()] == [1, 1]


def test_a_program_that_is_not_python_is_said_to_have_no_stack(launcher):
    done = launcher.run("-np", "2", "--timeout", "6", "--", "sleep", "1000")
    assert done.returncode == 124
    assert done.stderr.count("no Python interpreter") == 2


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGUSR1])
def test_stacks_can_be_asked_for_while_the_job_goes_on(launcher, number):
    process = launcher.start("-np", "4", "--", "python", "-c", HANG)
    for _ in range(4):
        assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(number)
    lines = []
    while sum("never_comes" in line or "waits_for" in line for line in lines) < 4:
        lines.append(process.stderr.readline())
    assert process.poll() is None
    process.terminate()
    process.communicate(timeout=60)
    assert launcher.left_over() == []


def test_a_program_that_python_has_become_is_not_ended_by_the_question(launcher):
    become = "import os; os.execvp('sh', ['sh', '-c', 'echo ready; exec sleep 1000'])"
    process = launcher.start("-np", "2", "--", "python", "-c", become)
    for _ in range(2):
        assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGUSR1)
    lines = []
    while sum("no Python interpreter" in line for line in lines) < 2:
        lines.append(process.stderr.readline())
    assert process.poll() is None
    process.terminate()
    process.communicate(timeout=60)
    assert launcher.left_over() == []


def test_a_programs_own_sitecustomize_still_runs(launcher, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.own = 7")
    path = f"{tmp_path}:{launcher.environment()['PYTHONPATH']}"
    done = launcher.run("-np", "1", "--", "python", "-c", "import sys; print(sys.own)", PYTHONPATH=path)
    assert done.stdout == "7\n"
