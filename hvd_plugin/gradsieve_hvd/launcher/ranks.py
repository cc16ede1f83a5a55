"""A job's running ranks, as the supervisor sees them; here those that ``mpirun`` starts."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGTERM
from typing import IO, NamedTuple, Protocol

from gradsieve.errors import LaunchError
from gradsieve_hvd.launcher import agent, linux
from gradsieve_hvd.launcher.job import Job
from gradsieve_hvd.launcher.mpi import find_program, held, mpirun_arguments
from gradsieve_hvd.launcher.output import OutputFilter
from gradsieve_hvd.launcher.processes import send
from gradsieve_hvd.launcher.streams import Sink, Source
from gradsieve_hvd.launcher.torch_environment import numbered


class Setting(NamedTuple):
    """Where a job runs.

    Attributes:
        environment: of every rank, complete.
        cores: number of cores that the job may use.
        folder: the job's own temporary folder.
        out: takes the ranks' standard output.
        err: takes their standard error.
    """

    environment: Mapping[str, str]
    cores: int
    folder: Path
    out: Sink
    err: Sink


class Ranks(Protocol):
    """What the supervisor asks of a job's ranks.

    Attributes:
        sources: their output.
        status: exit status for the shell. Not 0 while some still run: one has failed, and the others were
            asked to end.
    """

    sources: list[Source]
    status: int

    @property
    def running(self) -> bool:
        """Whether any of them still runs."""

    def ended(self, children: Mapping[int, int]) -> None:
        """Take note of children that have ended: process id -> exit code, negative for a signal."""

    def failure(self) -> str:
        """Which rank failed and how; empty if none did."""

    def terminate(self) -> None:
        """Ask all ranks to end."""


def shell_status(code: int) -> int:
    """Exit status that a shell gives to an exit code of ``subprocess``, in which a signal is negative."""
    return code if code >= 0 else 128 - code


def spawn(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a child whose output is read here, and which gets SIGTERM if this process dies.

    Raises:
        LaunchError: the program cannot be executed.
    """
    try:
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=linux.die_with_parent,  # noqa: PLW1509 - one system call, no locks
        )
    except OSError as error:
        raise LaunchError(f"cannot start {command[0]}: {error.strerror}") from error


def source(stream: IO[bytes] | None, sink: Sink, output_filter: OutputFilter) -> Source:
    """A child's pipe as a source that owns it."""
    assert stream is not None
    with stream:
        return Source(os.dup(stream.fileno()), sink, output_filter)


class MpiRanks:
    """Ranks under ``mpirun``, which watches them and ends all when one fails.

    Raises:
        LaunchError: ``mpirun`` was not found or cannot be executed.
    """

    def __init__(self, job: Job, command: tuple[str, ...], setting: Setting) -> None:
        script = setting.folder / "agent"
        script.write_text(f'exec {shlex.quote(sys.executable)} -I -S {shlex.quote(agent.__file__)} "$@"\n')
        arguments = mpirun_arguments(job, cores=setting.cores, folder=setting.folder, agent=script)
        mpirun = find_program("mpirun", setting.environment.get("PATH"))
        child = spawn([mpirun, *arguments, *numbered(held(command))], setting.environment)
        self._child = child  # a Popen that is forgotten waits for its process: reap() would miss its end
        self._pid = child.pid
        self.sources = [
            source(child.stdout, setting.out, OutputFilter(job.tag_output)),
            source(child.stderr, setting.err, OutputFilter(job.tag_output)),
        ]
        self.status = 0
        self._running = True

    @property
    def running(self) -> bool:
        """Whether ``mpirun`` still runs."""
        return self._running

    def ended(self, children: Mapping[int, int]) -> None:
        """Take note of children that have ended."""
        if self._pid in children:
            self._running = False
            self.status = shell_status(children[self._pid])

    def failure(self) -> str:
        """Which rank failed and how, from ``mpirun``'s words."""
        said = next((source.filter.failure for source in self.sources if source.filter.failure), "")
        return said or (f"mpirun exited with status {self.status}" if self.status else "")

    def terminate(self) -> None:
        """Ask ``mpirun`` to end all ranks."""
        send(self._pid, SIGTERM)
