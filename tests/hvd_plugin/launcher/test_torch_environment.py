"""Ranks find each other through ``torch.distributed`` as under torchrun."""

import pytest

from gradsieve_hvd.launcher import Job, Link
from gradsieve_hvd.launcher.torch_environment import free_port, rank_numbers, torch_environment

pytestmark = pytest.mark.timeout(180)
SUM = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "GLOO_SOCKET_IFNAME")
print(" ".join([*(os.environ[name] for name in names), str(total.item())]), flush=True)
dist.destroy_process_group()
"""


def test_a_script_for_torchrun_runs_unchanged(launcher):
    pytest.importorskip("mpi4py", reason="NO MPI HERE: mpi4py is not installed")
    stale = {"RANK": "7", "WORLD_SIZE": "9", "LOCAL_RANK": "3", "MASTER_ADDR": "nowhere.invalid"}
    done = launcher.run("-np", "2", "--", "python", "-c", SUM, **stale)
    assert sorted(done.stdout.splitlines()) == [f"{rank} 2 {rank} 2 127.0.0.1 lo 3.0" for rank in range(2)]
    assert (done.returncode, done.stderr) == (0, "")


def test_it_runs_unchanged_on_an_emulated_link(launcher, emulated_link_allowed):
    done = launcher.run("-np", "2", "--link", "100mbit", "--tag-output", "--", "python", "-c", SUM)
    lines = sorted(line.partition(">")[2] or line.partition("] ")[2] for line in done.stdout.splitlines())
    assert [line.strip() for line in lines] == [f"{rank} 2 0 1 10.99.0.2 eth0 3.0" for rank in range(2)]
    assert "hostname" not in done.stderr  # torch warns on each rank of addresses that have no name


def test_shell_commands_know_their_rank(launcher):
    pytest.importorskip("mpi4py", reason="NO MPI HERE: mpi4py is not installed")
    done = launcher.run("-np", "2", "--", "sh", "-c", 'echo "$RANK of $WORLD_SIZE"')
    assert sorted(done.stdout.splitlines()) == ["0 of 2", "1 of 2"]


def test_under_horovods_gloo_controller_the_numbers_are_the_same(launcher):
    pytest.importorskip("horovod.torch", reason="NO HOROVOD HERE: `gradsieve build-horovod` builds it")
    names = "('RANK', 'HOROVOD_RANK', 'LOCAL_RANK', 'WORLD_SIZE')"
    show = f"import os; print(*(os.environ[name] for name in {names}))"
    done = launcher.run("-np", "2", "--gloo", "--", "python", "-c", show)
    assert sorted(done.stdout.splitlines()) == ["0 0 0 2", "1 1 1 2"]


def test_the_users_port_and_interface_win_and_nothing_else():
    job = Job(("x",), 2)
    users = {"MASTER_PORT": "1234", "GLOO_SOCKET_IFNAME": "eth7", "WORLD_SIZE": "9", "MASTER_ADDR": "there"}
    found = torch_environment(job, users, port=20_001)
    assert (found["MASTER_PORT"], found["GLOO_SOCKET_IFNAME"]) == ("1234", "eth7")
    assert (found["WORLD_SIZE"], found["MASTER_ADDR"]) == ("2", "127.0.0.1")


def test_every_host_of_an_emulated_link_has_one_rank():
    job = Job(("x",), 3, Link(None))
    assert torch_environment(job, {}, port=1)["LOCAL_WORLD_SIZE"] == "1"
    assert rank_numbers(2, job) == {"RANK": "2", "LOCAL_RANK": "0"}


def test_two_jobs_get_ports_below_those_of_outgoing_connections():
    ports = {free_port(Job(("x",), 2)) for _ in range(20)}
    assert len(ports) > 1
    assert max(ports) < 32_768
