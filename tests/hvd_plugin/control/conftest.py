"""Jobs whose coordinator and agents are real processes, on loopback or on hosts of their own."""

import subprocess
import tempfile
from pathlib import Path

import pytest
from control_job import ControlJob, on_a_machine_named
from spread_jobs import (
    HOSTS,
    do_without,
    job_on_hosts,
    started,  # noqa: F401 - a fixture of this folder
)

pytest.importorskip("aiohttp", reason="NO CONTROL CHANNEL HERE: pip install gradsieve[launch]")


@pytest.fixture
def folder():
    # Not in pytest's own folder, whose path is too long for a socket.
    with tempfile.TemporaryDirectory(prefix="gs-") as path:
        yield Path(path)


@pytest.fixture
def job(folder):
    """Coordinator and agents on this machine's loopback, each agent's machine with its host's name."""
    if subprocess.run([*on_a_machine_named("h0"), "true"], capture_output=True, check=False).returncode != 0:
        do_without("NO HOSTS HERE: unshare(1) must be allowed to make UTS namespaces")
    made = ControlJob(folder, HOSTS)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def spread_job(folder):
    """Coordinator in a hub, agents on three hosts with a network of their own."""
    with job_on_hosts(folder) as made:
        yield made
