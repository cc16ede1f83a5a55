"""`gradsieve top` in a terminal: it follows what happens, and says when it cannot."""

import asyncio
import os
import pty
import re
import signal
import subprocess
import sys
import time

import horovod_jobs as jobs
import pytest
from operator_in_memory import JOB

_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A terminal of 200 columns with a program in it."""

    def __init__(self, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            # Where tests run in the background of a shell, it has them ignore Ctrl-C, and so what they start.
            ["env", "--default-signal=INT", sys.executable, "-m", "gradsieve_hvd.cli", *words],
            stdin=theirs, stdout=theirs, stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "200", "LINES": "40"},
        )  # fmt: skip
        os.close(theirs)
        os.set_blocking(self._ours, False)
        self._text = ""

    async def shows(self, words: str, seconds: float = 30.0) -> str:
        """Wait until ``words`` are shown anew; returns what was shown since the last call."""
        until = time.monotonic() + seconds
        while words not in (shown := _CONTROLS.sub("", self._text)):
            assert time.monotonic() < until, shown
            await asyncio.sleep(0.05)
            try:
                self._text += os.read(self._ours, 65536).decode(errors="replace")
            except BlockingIOError:
                continue
        self._text = ""
        return shown

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def top(server):
    found = Terminal("top", "-n", "research", "--interval", "0.5")
    yield found
    found.close()


def state(server, reason: str) -> None:
    condition = {"type": "Running", "status": "False", "reason": reason, "message": ""}
    server.objects[JOB, "research", "digits"].patch({"status": {"conditions": [condition]}})


async def test_a_jobs_state_is_shown_as_it_changes_until_ctrl_c(server, top):
    server.objects[JOB, "research", "digits"] = jobs.body(jobs.group("worker", 2))
    state(server, "Starting")
    assert "worker:0/2" in await top.shows("Starting")
    state(server, "Restarting")
    await top.shows("Restarting")
    top.process.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(top.process.wait, 30) == 0


async def test_what_cannot_be_read_for_a_while_is_said_below_the_last_that_could(server, top):
    server.objects[JOB, "research", "digits"] = jobs.body()
    await top.shows("digits")
    del server.objects[JOB, "research", "digits"], server.resources[JOB]
    assert "digits" in await top.shows("not up to date")
    assert top.process.poll() is None
