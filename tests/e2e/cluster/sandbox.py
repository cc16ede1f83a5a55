"""Namespaces without names, held open by a process: when the processes in them are dead, the kernel clears
them away.

Everything that a node mounts, links or listens on is inside such a sandbox. That is what makes several
clusters possible side by side, and what makes killing the processes of a cluster enough to remove it.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from cluster import cgroups
from cluster.commands import run
from cluster.errors import ClusterError

_HOLD_SECONDS = 30
_STOP_SECONDS = 15


class Sandbox:
    """A network and a mount namespace with the processes that run in it.

    Args:
        cgroup: the cgroup that all processes join, so that they can be found even after a crash.
        logs: the folder of the processes' output, one file each.
        mounts: shell commands that set up the private mount namespace.
        nice: of the processes that `start` starts; less than nothing goes before others.
    """

    def __init__(self, cgroup: str, logs: Path, mounts: Sequence[str], nice: int = 0) -> None:
        self._entry = cgroups.entry_file(cgroup)
        self._logs, self._nice = logs, nice
        self.children: dict[str, subprocess.Popen] = {}
        unshare = ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c"]
        script = "; ".join(["set -e", *mounts, "ip link set lo up", "echo held", "exec sleep infinity"])
        self._holder = subprocess.Popen(
            ["sh", "-c", self._joining(), str(self._entry), *unshare, script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline().strip() != "held":
            _, said = self._holder.communicate(timeout=_HOLD_SECONDS)
            raise ClusterError(f"no namespaces for a sandbox: {said.strip()}")

    @property
    def pid(self) -> int:
        """The process whose namespaces the sandbox is."""
        return self._holder.pid

    def inside(self, *command: str) -> list[str]:
        """Return the command line that runs `command` in the sandbox."""
        return ["nsenter", "--target", str(self.pid), "--net", "--mount", "--", *command]

    def run(self, *command: str, stdin: str | None = None, check: bool = True, timeout: float = 60) -> str:
        """Run `command` in the sandbox to its end and return its output; see :func:`cluster.commands.run`."""
        return run(self.inside(*command), stdin=stdin, check=check, timeout=timeout)

    def start(self, name: str, *command: str | Path, environment: dict[str, str] | None = None) -> None:
        """Start `command` in the sandbox under `name`; its output goes to a log file of that name."""
        ranked = ["nice", "-n", str(self._nice), *self.inside(*map(str, command))]
        line = [self._joining(), str(self._entry), *ranked]
        with (self._logs / f"{name}.log").open("ab") as log:
            self.children[name] = subprocess.Popen(
                ["sh", "-c", *line],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    def stop(self, name: str) -> None:
        """End the process `name`: SIGTERM, then SIGKILL after a while."""
        process = self.children.pop(name)
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_SECONDS)

    def ended(self) -> dict[str, int]:
        """Return the exit status of every process that was started and is no longer there."""
        return {name: child.poll() for name, child in self.children.items() if child.poll() is not None}

    def reap(self) -> None:
        """Collect the statuses of all processes, which somebody must have killed."""
        deadline = time.monotonic() + _STOP_SECONDS
        for process in (*self.children.values(), self._holder):
            process.wait(max(0.1, deadline - time.monotonic()))
        for stream in (self._holder.stdout, self._holder.stderr):
            if stream is not None:
                stream.close()

    @staticmethod
    def _joining() -> str:
        # `sh -c` passes the first argument as $0: the cgroup's file. Joined before the program exists, the
        # cgroup also holds whatever the program starts.
        return 'echo $$ > "$0" && exec "$@"'
