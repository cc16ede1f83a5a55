"""Horovod's thread sleeps while its messages wait behind gradients that another library carries."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)

# Two seconds' worth of messages are put into the link's queue at once. What ranks ask each other once in a
# cycle waits behind them; both ranks do nothing meanwhile but look for what arrives, every millisecond.
BEHIND = """
import time
import horovod.torch as hvd
hvd.init()
import torch
from gradsieve_hvd.transport.mpi import MpiTransport

transport = MpiTransport(timeout=60)
hvd.barrier()
began, used = time.monotonic(), time.process_time()
for message in transport.begin_allgather(torch.zeros(1_000_000, dtype=torch.uint8))():
    assert message.numel() == 1_000_000
seconds, used = time.monotonic() - began, time.process_time() - used
print(f"waited {seconds:.2f} used {used:.2f}", flush=True)
"""


def test_on_a_slow_link(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(BEHIND)
    run = [sys.executable, "-m", "gradsieve_hvd.cli", "run", "-np", "2", "--link", "4mbit", "--timeout", "60"]
    finished = subprocess.run(
        [*run, "--", sys.executable, str(program)], capture_output=True, text=True, timeout=90
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    told = re.findall(r"waited (\S+) used (\S+)", finished.stdout)
    assert len(told) == 2, finished.stdout
    for waited, used in told:
        assert float(waited) > 1.5
        assert float(used) < 0.15 * float(waited), finished.stdout
