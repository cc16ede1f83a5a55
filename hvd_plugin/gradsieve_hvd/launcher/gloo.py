"""Ranks under Horovod's Gloo controller: started one by one here, without ``mpirun``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from signal import SIGTERM, Signals
from subprocess import Popen

from gradsieve.errors import LaunchError
from gradsieve_hvd.launcher import agent
from gradsieve_hvd.launcher.addresses import HUB, host_name
from gradsieve_hvd.launcher.job import Job
from gradsieve_hvd.launcher.output import OutputFilter
from gradsieve_hvd.launcher.processes import send
from gradsieve_hvd.launcher.ranks import Setting, shell_status, source, spawn
from gradsieve_hvd.launcher.streams import Source
from gradsieve_hvd.launcher.torch_environment import rank_numbers


def slot_environment(rank: int, job: Job, port: int) -> dict[str, str]:
    """What Horovod's Gloo controller wants to know on ``rank``, whose rendezvous server listens on ``port``.

    Without an emulated link all ranks share one host and meet over loopback; with one, each has its own.
    """
    linked = job.link is not None
    own, other = ("CROSS", "LOCAL") if linked else ("LOCAL", "CROSS")
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": HUB if linked else "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_HOSTNAME": host_name(rank) if linked else "localhost",
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(job.ranks),
        f"HOROVOD_{own}_RANK": str(rank),
        f"HOROVOD_{own}_SIZE": str(job.ranks),
        f"HOROVOD_{other}_RANK": "0",
        f"HOROVOD_{other}_SIZE": "1",
    }


def start_rendezvous(job: Job) -> int:
    """Start Horovod's rendezvous server in a thread of this process; returns its port.

    Raises:
        LaunchError: Horovod is not installed.
    """
    try:
        from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
        from horovod.runner.http.http_server import RendezvousServer
    except ImportError as error:
        raise LaunchError(f"--gloo needs Horovod ({error}): `gradsieve build-horovod` builds it") from error
    hosts = (
        [("localhost", job.ranks)]
        if job.link is None
        else [(host_name(rank), 1) for rank in range(job.ranks)]
    )
    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments([HostInfo(name, slots) for name, slots in hosts], job.ranks))
    return int(port)


def culprit(failed: Mapping[int, int]) -> int:
    """Return the rank that most probably failed first, of several whose ends were noticed at the same time.

    The kernel does not tell who ended first. But a rank whose peer is gone ends with Python's status of an
    exception, 1, so that one with another status is no such victim.

    Args:
        failed: exit codes by rank, at least one; negative: the signal's number.
    """
    return min(failed, key=lambda rank: (failed[rank] == 1, rank))


class GlooRanks:
    """Ranks that were started one by one: the first that fails decides the status and ends the others.

    Raises:
        LaunchError: Horovod is missing, or the command cannot be executed.
    """

    def __init__(self, job: Job, command: tuple[str, ...], setting: Setting) -> None:
        defaults = {"HOROVOD_GLOO_IFACE": "lo"} | dict(setting.environment)
        port = start_rendezvous(job)
        self.sources: list[Source] = []
        self.status = 0
        self._failure = ""
        self._ranks: dict[int, int] = {}
        # A Popen that is forgotten waits for its process, whose end would then be lost to processes.reap().
        self._children: list[Popen[bytes]] = []
        for rank in range(job.ranks):
            own = slot_environment(rank, job, port) | rank_numbers(rank, job)
            child = spawn(_on_host(rank, job, command), defaults | own)
            self._ranks[child.pid] = rank
            self._children.append(child)
            prefix = f"[{rank}] ".encode() if job.tag_output else b""
            for stream, sink in (child.stdout, setting.out), (child.stderr, setting.err):
                own_lines = source(stream, sink, OutputFilter(prefix=prefix))
                own_lines.whole_lines = True
                self.sources.append(own_lines)

    @property
    def running(self) -> bool:
        """Whether any rank still runs."""
        return bool(self._ranks)

    def ended(self, children: Mapping[int, int]) -> None:
        """Take note of children that have ended; the first failure ends the others."""
        gone = {self._ranks.pop(pid): children[pid] for pid in self._ranks.keys() & children.keys()}
        failed = {rank: code for rank, code in gone.items() if code}
        if failed and not self.status:
            rank = culprit(failed)
            self.status = shell_status(failed[rank])
            self._failure = f"rank {rank} " + _how(failed[rank])
            self.terminate()

    def failure(self) -> str:
        """Which rank failed first and how."""
        return self._failure

    def terminate(self) -> None:
        """Ask all ranks that still run to end."""
        for pid in self._ranks:
            send(pid, SIGTERM)


def _how(code: int) -> str:
    return (
        f"exited with status {code}" if code > 0 else f"was ended by signal {-code} ({Signals(-code).name})"
    )


def _on_host(rank: int, job: Job, command: tuple[str, ...]) -> list[str]:
    if job.link is None:
        return list(command)
    return [sys.executable, "-I", "-S", agent.__file__, host_name(rank), "exec", shlex.join(command)]
