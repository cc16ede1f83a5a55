"""Jobs whose coordinator and agents are real processes, on loopback or on hosts of their own."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from control_job import ControlJob, on_a_machine_named
from hosts_network import HostsNetwork

pytest.importorskip("aiohttp", reason="NO CONTROL CHANNEL HERE: pip install gradsieve[launch]")
HOSTS = ("h0", "h1", "h2")


def _do_without(reason):
    if os.environ.get("GRADSIEVE_REQUIRE_LINK") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def folder():
    # Not in pytest's own folder, whose path is too long for a socket.
    with tempfile.TemporaryDirectory(prefix="gs-") as path:
        yield Path(path)


@pytest.fixture
def job(folder):
    """Coordinator and agents on this machine's loopback, each agent's machine with its host's name."""
    if subprocess.run([*on_a_machine_named("h0"), "true"], capture_output=True, check=False).returncode != 0:
        _do_without("NO HOSTS HERE: unshare(1) must be allowed to make UTS namespaces")
    made = ControlJob(folder, HOSTS)
    yield made
    made.close()


@pytest.fixture
def spread_job(folder):
    """Coordinator in a hub, agents on three hosts with a network of their own."""
    reason = ""
    if os.geteuid() != 0 or shutil.which("nsenter") is None:
        reason = "NO HOSTS HERE: network namespaces for agents need root and nsenter(1)"
    else:
        try:
            network = HostsNetwork(len(HOSTS))
        except OSError as error:
            reason = f"NO HOSTS HERE: {error}"
    if reason:
        _do_without(reason)
    made = ControlJob(folder, HOSTS, network)
    yield made
    made.close()
    network.close()
