"""A rank is killed amid an epoch; training goes on from a checkpoint, and each sample counts once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SAMPLES, BATCH, RANKS, EPOCHS = 120, 8, 2, 3
_ROUNDING = 1e-4  # of sums of some fp32 parts of 1

PROGRAM = f"""
import datetime, os, signal, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
import gradsieve_hvd
from gradsieve_hvd.transport.torch_distributed import TorchDistributedTransport

folder, rank, attempt, mode = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
store = dist.FileStore(str(folder / f"store-{{attempt}}"), {RANKS})
seconds = datetime.timedelta(seconds=60)
dist.init_process_group("gloo", store=store, rank=rank, world_size={RANKS}, timeout=seconds)
times = torch.nn.Parameter(torch.zeros({SAMPLES}))  # how often each sample has become weights
optimizer = gradsieve_hvd.DistributedOptimizer(
    torch.optim.SGD([times], lr={RANKS * BATCH}), [("times", times)], mode=mode, exchange="dense",
    transport=TorchDistributedTransport(timeout=20),
)
sampler = gradsieve_hvd.DynamicSampler(range({SAMPLES}), optimizer, {BATCH})
loader = DataLoader(TensorDataset(torch.arange({SAMPLES})), batch_sampler=sampler, num_workers=2)
first = 0
if (saved := folder / "saved.pt").exists():
    state = torch.load(saved)
    times.data.copy_(state["times"])
    sampler.load_state_dict(state["sampler"])
    first = state["sampler"]["epoch"]
for epoch in range(first, {EPOCHS}):
    sampler.set_epoch(epoch)
    for taken, (places,) in enumerate(loader):
        time.sleep((0.004 if rank else 0.001) * len(places))
        optimizer.zero_grad()
        (-times[places].mean()).backward()
        optimizer.step()
        if rank == 0 and epoch and taken % 2:
            with optimizer.consistent():
                torch.save({{"times": times.detach(), "sampler": sampler.state_dict()}}, folder / "new.pt")
            os.replace(folder / "new.pt", saved)
        if rank == 0 and attempt == 0 and epoch == 1 and taken >= 3:
            (folder / "kill").touch()
        if rank == 1 and (folder / "kill").exists() and attempt == 0:
            os.kill(os.getpid(), signal.SIGKILL)
optimizer.finish()
torch.save((times.detach(), optimizer.samples_seen), folder / f"end-{{rank}}.pt")
"""


def run(folder: Path, attempt: int, mode: str) -> list[tuple[int, str]]:
    script = folder / "program.py"
    script.write_text(PROGRAM)
    ranks = [
        subprocess.Popen(
            [sys.executable, script, folder, str(rank), str(attempt), mode],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        outputs = [each.communicate(timeout=90)[0] for each in ranks]
    finally:
        for each in ranks:
            each.kill()
            each.wait()
    return [(each.returncode, output) for each, output in zip(ranks, outputs, strict=True)]


@pytest.mark.timeout(200)
@pytest.mark.parametrize("mode", ["asp", "dasp"])
def test_a_restored_training_uses_what_its_weights_have_not_used(tmp_path: Path, mode: str) -> None:
    """In "dasp" batches follow speeds; what comes late counts less there."""
    (status, said), (killed, _) = run(tmp_path, 0, mode)
    assert killed == -9
    assert status == 1
    assert "rank 1 was lost" in said
    saved = torch.load(tmp_path / "saved.pt")
    assert 0 < saved["sampler"]["samples_seen"] < SAMPLES * EPOCHS
    assert [status for status, _ in run(tmp_path, 1, mode)] == [0] * RANKS
    for rank in range(RANKS):
        times, seen = torch.load(tmp_path / f"end-{rank}.pt")
        assert seen == SAMPLES * EPOCHS
        if mode == "asp":
            assert saved["sampler"]["samples_seen"] == int(saved["times"].sum())
            assert torch.equal(times, torch.full((SAMPLES,), float(EPOCHS)))
        else:
            assert 0 < times.min() <= times.max() <= EPOCHS + _ROUNDING
