"""Starts the real launcher, and looks for what it may have left behind."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import gradsieve
import gradsieve_hvd

MARKER = "GRADSIEVE_TEST_MARKER"
PACKAGES = [str(Path(package.__file__).parents[1]) for package in (gradsieve, gradsieve_hvd)]


def marked_processes(marker: str) -> list[str]:
    """Every living process that was started below the launcher with this marker in its environment."""
    wanted = f"{MARKER}={marker}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(f"{folder.name} {(folder / 'cmdline').read_bytes()!r}")
        except OSError:
            continue
    return found


@dataclass
class Launcher:
    """Runs ``gradsieve run`` with a marker that every process of the job inherits."""

    folder: Path
    prefix: list[str] = field(default_factory=list)
    marker: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: list[subprocess.Popen] = field(default_factory=list)

    def environment(self, **variables: str) -> dict[str, str]:
        path = os.pathsep.join([*PACKAGES, os.environ.get("PYTHONPATH", "")])
        own = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": path,
            "TMPDIR": str(self.folder),
            "HOME": str(self.folder),
            MARKER: self.marker,
        }
        return {**os.environ, **own, **variables}

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [*self.prefix, sys.executable, "-m", "gradsieve_hvd.cli", "run", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(**variables),
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        process = self.start(*arguments, **variables)
        out, err = process.communicate(timeout=90)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def left_over(self, patience: float = 10.0) -> list[str]:
        """Processes and temporary files of the job that are still there when the patience is at its end."""
        until = time.monotonic() + patience
        while (left := marked_processes(self.marker)) and time.monotonic() < until:
            time.sleep(0.05)
        return left + [str(path) for path in self.folder.iterdir()]

    def close(self) -> None:
        """Kill what is left, so that a failing test does not disturb the next one."""
        for process in marked_processes(self.marker):
            try:
                os.kill(int(process.split()[0]), signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self.started:
            for stream in (process.stdout, process.stderr):
                stream.close()
            process.wait(timeout=30)


@pytest.fixture
def launcher():
    # Not in pytest's own folder, which is closed to the other users that some tests become.
    with tempfile.TemporaryDirectory(prefix="gradsieve-test-") as folder:
        Path(folder).chmod(0o777)
        job = Launcher(Path(folder))
        yield job
        job.close()


@pytest.fixture(scope="session")
def emulated_link_allowed(tmp_path_factory):
    """Skips, saying why, where no emulated link is allowed; fails instead where CI requires one."""
    job = Launcher(tmp_path_factory.mktemp("link"))
    tried = job.run("-np", "1", "--link", "100mbit", "--", "true")
    job.close()
    if tried.returncode == 0:
        return
    reason = f"NO EMULATED LINK HERE: {tried.stderr}"
    if os.environ.get("GRADSIEVE_REQUIRE_LINK") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
