"""Real ranks under mpirun: what they print, how they fail, and what status comes back."""

import os

import pytest

pytest.importorskip("mpi4py", reason="NO MPI HERE: mpi4py is not installed")
pytestmark = pytest.mark.timeout(120)

SUM = """
from mpi4py import MPI
world = MPI.COMM_WORLD
print("rank", world.rank, "of", world.size, "sum", world.allreduce(world.rank), flush=True)
"""

FAIL = """
import os, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
world.barrier()
if world.rank == 1:
    {failure}
world.barrier()
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_form_one_world(launcher, ranks):
    done = launcher.run("-np", str(ranks), "--", "python", "-c", SUM)
    total = ranks * (ranks - 1) // 2
    assert sorted(done.stdout.splitlines()) == [
        f"rank {rank} of {ranks} sum {total}" for rank in range(ranks)
    ]
    assert (done.returncode, done.stderr) == (0, "")
    assert launcher.left_over() == []


def test_a_traceback_is_shown_once_and_the_failing_rank_is_named(launcher):
    done = launcher.run("-np", "4", "--", "python", "-c", FAIL.format(failure="raise ValueError('boom')"))
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == done.stderr.count("ValueError: boom") == 1
    assert done.stderr.splitlines()[-1] == "gradsieve run: rank 1 exited with status 1"
    assert "prterun" not in done.stderr
    assert launcher.left_over() == []


@pytest.mark.parametrize(
    ("failure", "status", "how"),
    [
        pytest.param("sys.exit(3)", 3, "rank 1 exited with status 3", id="exit"),
        pytest.param("os.kill(os.getpid(), 9)", 137, "rank 1 was ended by signal 9", id="signal"),
        pytest.param("world.Abort(5)", 5, "rank 1 called MPI_Abort with status 5", id="abort"),
    ],
)
def test_the_failing_ranks_status_is_returned(launcher, failure, status, how):
    done = launcher.run("-np", "2", "--", "python", "-c", FAIL.format(failure=failure))
    assert done.returncode == status
    assert how in done.stderr.splitlines()[-1]
    assert launcher.left_over() == []


def test_a_crash_shows_the_python_stack(launcher):
    done = launcher.run("-np", "2", "--", "python", "-c", FAIL.format(failure="os.abort()"))
    assert done.returncode == 134
    assert "Fatal Python error: Aborted" in done.stderr


def test_tagged_output_names_the_rank_on_every_line(launcher):
    done = launcher.run("-np", "2", "--tag-output", "--", "python", "-c", "print('a'); print('b')")
    assert sorted(done.stdout.splitlines()) == ["[0] a", "[0] b", "[1] a", "[1] b"]


def test_cores_that_must_be_shared_get_equally_many_ranks(launcher):
    cores = sorted(os.sched_getaffinity(0))
    ranks = 2 * len(cores)
    program = "import os; print(*os.sched_getaffinity(0))"
    done = launcher.run("-np", str(ranks), "--", "python", "-c", program)
    assert sorted(done.stdout.split(), key=int) == [str(core) for core in cores for _ in range(2)]


def test_any_program_can_be_run(launcher):
    done = launcher.run("-np", "2", "--", "sh", "-c", "echo $OMPI_COMM_WORLD_RANK; exit 6")
    assert done.returncode == 6
    assert set(done.stdout.split()) <= {"0", "1"}


def test_a_missing_command_is_an_error_of_one_line(launcher):
    done = launcher.run("-np", "2", "--", "no-such-program")
    assert done.returncode == 2
    assert done.stderr.strip() == "error: command 'no-such-program' was not found, or may not be executed"
    assert launcher.left_over() == []


def test_a_python_program_without_its_interpreter_is_told_how_to_start(launcher):
    (launcher.folder / "train.py").write_text("print('hello')")  # not executable, as such files are
    program = str(launcher.folder / "train.py")
    done = launcher.run("-np", "2", "--", program, "--lr", "0.1 0.2")
    assert done.returncode == 2
    assert f"write `-- python {program} --lr '0.1 0.2'`" in done.stderr


@pytest.fixture
def without_pyroute2(launcher, tmp_path):
    """Where Python finds no pyroute2, as after an installation without the extra ``link``."""
    (tmp_path / "pyroute2.py").write_text("raise ModuleNotFoundError(\"No module named 'pyroute2'\")")
    return os.pathsep.join([str(tmp_path), launcher.environment()["PYTHONPATH"]])


def test_without_the_packages_for_links_a_job_without_a_link_runs(launcher, without_pyroute2):
    done = launcher.run("-np", "2", "--", "true", PYTHONPATH=without_pyroute2)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_the_packages_for_links_a_link_is_an_error_that_says_what_to_install(
    launcher, without_pyroute2, emulated_link_allowed
):
    done = launcher.run("-np", "2", "--link", "100mbit", "--", "true", PYTHONPATH=without_pyroute2)
    assert done.returncode == 2
    assert "pip install 'gradsieve[link]'" in done.stderr
    assert "Traceback" not in done.stderr
