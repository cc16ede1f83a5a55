"""Real ranks under a parameter server of which one is lost, or ends by an exception."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from real_ranks import run_alone

TRAINING = """
import os, signal, sys
import torch
import gradsieve_hvd

def train(rank, transport=None):
    torch.manual_seed(0)
    model = torch.nn.Linear(60, 20)
    optimizer = gradsieve_hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(),
        gradsieve_hvd.Compression.laplace(timeout_seconds=20), mode="asp", transport=transport,
    )
    for number in range(1000):
        optimizer.zero_grad()
        model(torch.ones(4, 60)).square().mean().backward()
        if rank == 1 and number == 3:
            LOST
        try:
            optimizer.step()
        except gradsieve_hvd.ExchangeError as error:
            print(f"rank {rank} was told: {error}", flush=True)
            raise
"""
ON_HOROVOD = """
import horovod.torch as hvd
hvd.init()
train(hvd.rank())
"""
ON_GLOO = """
import datetime
import torch.distributed as dist
from gradsieve_hvd.transport.torch_distributed import TorchDistributedTransport

rank = int(sys.argv[2])
store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60))
train(rank, TorchDistributedTransport(timeout=20))
"""
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
RAISES = "raise ValueError('of the loop')"


@pytest.mark.timeout(120)
def test_over_mpi_a_killed_rank_ends_the_job_and_is_named(tmp_path: Path) -> None:
    program = TRAINING.replace("LOST", KILLED) + ON_HOROVOD
    status, output = run_alone(program, ranks=3, folder=tmp_path, timeout=60)
    assert status not in (0, 124), output
    assert "rank 1" in output


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("lost", "says"),
    [
        pytest.param(KILLED, "rank 0 was told: rank 0: the connection to rank 1 was lost", id="killed"),
        pytest.param(RAISES, "rank 0 was told: rank 1 has ended by ValueError('of the loop')", id="raises"),
    ],
)
def test_over_gloo_the_others_are_told(lost: str, says: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(TRAINING.replace("LOST", lost) + ON_GLOO)
    ranks = [
        subprocess.Popen(
            [sys.executable, script, tmp_path / "store", str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=90)[0] for rank in ranks]
    assert says in outputs[0], outputs
    assert ranks[0].returncode == 1
