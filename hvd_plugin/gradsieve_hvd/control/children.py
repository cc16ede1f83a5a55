"""Child processes in an event loop: their output, their exit statuses, and the end of all descendants."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from gradsieve_hvd.control.contract import KILL_SECONDS
from gradsieve_hvd.launcher import linux
from gradsieve_hvd.launcher.processes import descendants, environment, reap, send
from gradsieve_hvd.launcher.ranks import shell_status, spawn

STDOUT = "stdout"
STDERR = "stderr"
Output = Callable[[str, bytes], None]
"""Takes the name of a stream and what came from it."""

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals with which a coordinator or an agent is told to end."""

_CHUNK = 1 << 16
_OUTPUT_SECONDS = 2.0
"""How long to read on after a child's end: a daemon that it left may keep its pipes open for ever."""


class Child:
    """A running program.

    Attributes:
        pid: its process id.
        ended: exit status as a shell gives it, once the program has ended and its output was read.
    """

    def __init__(self, process: subprocess.Popen[bytes], output: Output) -> None:
        self.pid = process.pid
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._process = process
        self._output = output
        self._open: dict[int, str] = {}
        self._status: int | None = None
        for stream, name in ((process.stdout, STDOUT), (process.stderr, STDERR)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._open[stream.fileno()] = name
            asyncio.get_running_loop().add_reader(stream.fileno(), self._read, stream.fileno())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program, if it still runs."""
        if self._status is None:
            send(self.pid, number)

    def exited(self, code: int) -> None:
        """Take note of the exit code: negative for a signal."""
        self._process.returncode = code
        self._status = shell_status(code)
        asyncio.get_running_loop().call_later(_OUTPUT_SECONDS, self._close)
        self._finish_if_all_was_read()

    def _read(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._output(self._open[descriptor], data)
        else:
            self._forget(descriptor)
            self._finish_if_all_was_read()

    def _forget(self, descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        name = self._open.pop(descriptor)
        stream = self._process.stdout if name == STDOUT else self._process.stderr
        assert stream is not None
        stream.close()

    def _close(self) -> None:
        for descriptor in list(self._open):
            self._forget(descriptor)
        self._finish_if_all_was_read()

    def _finish_if_all_was_read(self) -> None:
        if not self._open and self._status is not None and not self.ended.done():
            self.ended.set_result(self._status)


class Children:
    """All processes below this one; at most one instance per process, since it adopts and reaps every orphan.

    Raises:
        OSError: the kernel refuses to make this process a subreaper.
    """

    def __init__(self) -> None:
        linux.become_subreaper()
        self._children: dict[int, Child] = {}
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)

    def start(self, command: Sequence[str], variables: Mapping[str, str], output: Output) -> Child:
        """Start a program with an environment of exactly ``variables``; ``output`` gets what it writes.

        Raises:
            LaunchError: it cannot be executed.
        """
        child = Child(spawn(command, variables), output)
        self._children[child.pid] = child
        return child

    async def end(
        self, belongs: Callable[[int], bool] = lambda _pid: True, *, grace: float = KILL_SECONDS
    ) -> bool:
        """End all descendants that ``belongs`` picks by process id: SIGTERM, and SIGKILL after ``grace`` s.

        Returns whether all have gone; only one in uninterruptible sleep can stay, for which it gives up
        after ten more seconds.
        """
        began = time.monotonic()
        asked: set[int] = set()
        while (waited := time.monotonic() - began) < grace + 10.0:
            left = [pid for pid in descendants() if belongs(pid)]
            if not left:
                return True
            for pid in left:
                if waited >= grace:
                    send(pid, signal.SIGKILL)
                elif pid not in asked:
                    asked.add(pid)
                    send(pid, signal.SIGTERM)
            await asyncio.sleep(0.05)
        return False

    def close(self) -> None:
        """Let go of the signal; to be called when no child is left."""
        with suppress(RuntimeError):
            asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    def _reap(self) -> None:
        for pid, code in reap().items():
            if pid in self._children:
                self._children.pop(pid).exited(code)


def has_variable(name: str, value: str) -> Callable[[int], bool]:
    """Picks processes that were started with the environment variable ``name`` set to ``value``."""
    return lambda pid: environment(pid).get(name) == value
