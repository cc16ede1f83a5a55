"""Starts a job's ranks: its network first, then what runs on it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradsieve.errors import LaunchError
from gradsieve_hvd.launcher import agent
from gradsieve_hvd.launcher.job import Job
from gradsieve_hvd.launcher.mpi import rank_environment
from gradsieve_hvd.launcher.python_command import rank_command
from gradsieve_hvd.launcher.ranks import MpiRanks, Ranks, Setting
from gradsieve_hvd.launcher.streams import Sink
from gradsieve_hvd.launcher.torch_environment import free_port, torch_environment

if TYPE_CHECKING:
    from gradsieve_hvd.launcher.network import EmulatedLink


def start(job: Job, folder: Path, stacks: Path, out: Sink, err: Sink) -> tuple[Ranks, EmulatedLink | None]:
    """Start the ranks of ``job``; the calling process becomes the hub of their emulated network, if any.

    Args:
        job: what to run.
        folder: the job's own temporary folder.
        stacks: folder below it where interpreters leave their stacks.
        out: takes the ranks' standard output.
        err: takes their standard error.

    Raises:
        LaunchError: the command, ``mpirun`` or Horovod is missing, or the link cannot be built.
    """
    path = os.environ.get("PATH")
    command = rank_command(job.command)
    if shutil.which(command[0], path=path) is None:
        raise LaunchError(
            f"command {command[0]!r} was not found, or may not be executed{_python_hint(command)}"
        )
    link = None if job.link is None else _emulated_link([job.link.rate_of(rank) for rank in range(job.ranks)])
    cores = len(os.sched_getaffinity(0))
    environment = rank_environment(job, os.environ, cores=cores, root=os.geteuid() == 0, stacks=stacks)
    environment |= torch_environment(job, os.environ, free_port(job))
    if link is not None:
        environment[agent.HOSTS_VARIABLE] = json.dumps(link.namespaces())
    return _ranks(job, command, Setting(environment, cores, folder, out, err)), link


def _python_hint(command: tuple[str, ...]) -> str:
    """What to write instead where a Python program was given without its interpreter; else nothing."""
    if not command[0].endswith(".py"):
        return ""
    return f"; to run a Python program write `-- python {shlex.join(command)}`"


def _emulated_link(rates: Sequence[int | None]) -> EmulatedLink:
    # pyroute2 takes a quarter of a second to import, and needs not be installed for a job without a link.
    try:
        from gradsieve_hvd.launcher.network import EmulatedLink
    except ModuleNotFoundError as error:
        raise LaunchError(
            f"an emulated link needs pyroute2 ({error}): pip install 'gradsieve[link]'"
        ) from error
    return EmulatedLink(rates)


def _ranks(job: Job, command: tuple[str, ...], setting: Setting) -> Ranks:
    if not job.gloo:
        return MpiRanks(job, command, setting)
    # Horovod's runner takes half a second to import, and needs not be installed for MPI programs.
    from gradsieve_hvd.launcher.gloo import GlooRanks

    return GlooRanks(job, command, setting)
