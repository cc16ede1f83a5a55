"""Thousands of half-open connections cost the coordinator little, and its job nothing."""

from pathlib import Path

import pytest
from control_job import roster
from half_open import HalfOpen, client_hello

pytestmark = pytest.mark.timeout(200)

MOST_MEBIBYTES = 64
SILENT_ADDRESSES = [f"127.0.1.{number}" for number in range(1, 251)]


def memory(program, field="VmRSS"):
    """Return MiB of a process, as the kernel counts them."""
    lines = Path(f"/proc/{program.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def test_ten_thousand_half_open_connections_do_not_disturb_a_job(job):
    first = job.agent("h0", "--uid", "uid-0")
    coordinator = job.coordinator()
    coordinator.wait_for("listening", times=2)
    hosts = {"h0": "uid-0", "h1": "uid-1"}
    assert job.call("PUT", "/v1/roster", roster(1, ["sh", "-c", "echo up; sleep 1000"], hosts))[0] == 200
    first.wait_for("registered")
    before = memory(coordinator)
    with (
        HalfOpen(job.port, client_hello()) as one_worker,
        HalfOpen(job.port) as silent,
        HalfOpen(job.read_only_port) as on_the_plain_port,
    ):
        one_worker.open(3200, source="127.0.0.2")
        job.agent("h1", "--uid", "uid-1")
        silent.open(2800, source="127.0.0.1")
        coordinator.wait_for("] up", times=2)
        on_the_plain_port.open(2000, source="127.0.0.3")
        for address in SILENT_ADDRESSES:
            silent.open(8, source=address)
        assert job.status()["state"] == "Running"
        assert "Running" in job.look("/v1/status")
        assert memory(coordinator, "VmHWM") - before < MOST_MEBIBYTES
    assert job.status()["missing"] == []
    assert coordinator.text().count("registered (") == 2
    assert "has gone" not in coordinator.text()
    # A flood of connections is not a flood of lines.
    assert len(coordinator.lines("gradsieve coordinator: port")) <= 4
    assert memory(coordinator) - before < MOST_MEBIBYTES
