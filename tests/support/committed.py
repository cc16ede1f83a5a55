"""Trainings that commit and restore, for tests on real ranks."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from training import TIMEOUT, distribute, laplace, loss_of, perceptron, weights

import gradsieve_hvd
from gradsieve_hvd import DensityWarmup


class Run:
    """One training: model, optimizer, scheduler and their TrainingState; a new process in all but name."""

    def __init__(
        self,
        hvd: Any,
        directory: Path,
        *,
        seed: int = 0,
        compression: Any = None,
        wrap: Any = lambda model: model,
        **settings: Any,
    ) -> None:
        self.hvd = hvd
        self.model = wrap(perceptron(seed))
        made = laplace(warmup=DensityWarmup(start=0.5, steps=4)) if compression is None else compression
        self.optimizer = distribute(hvd, self.model, made)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.7)
        self.state = gradsieve_hvd.TrainingState(
            self.model,
            self.optimizer,
            directory=directory,
            timeout_seconds=TIMEOUT,
            **{"scheduler": self.scheduler, "seen": 0, **settings},
        )

    def train(self, until: int, first: int | None = None) -> list[Tensor]:
        """Restore and train; every step draws from the random number generator of the rank."""
        for step in range(self.state.restore() if first is None else first, until):
            self.optimizer.zero_grad()
            loss = loss_of(self.model, step, self.hvd.rank())
            (loss * (1 + 0.1 * torch.rand(()))).backward()
            self.optimizer.step()
            self.scheduler.step()
            self.state.values["seen"] += 8
            self.state.commit(step + 1)
        return weights(self.model)


@contextlib.contextmanager
def folder(hvd: Any, *, apart: bool = False) -> Iterator[Path]:
    """A folder in memory that all ranks share, or (``apart``) one for each, as on different hosts."""
    made = tempfile.mkdtemp(dir="/dev/shm") if hvd.rank() == 0 else None
    base = Path(hvd.broadcast_object(made, 0, name="folder"))
    try:
        yield base / str(hvd.rank()) if apart else base
    finally:
        hvd.barrier()
        if hvd.rank() == 0:
            shutil.rmtree(base)


def committed(directory: Path, rank: int) -> list[int]:
    """The steps of a rank's commits in a folder."""
    return [int(path.name[5:17]) for path in sorted(directory.glob(f"step-*.rank-{rank}.commit"))]


def commit_file(directory: Path, step: int, rank: int) -> Path:
    return directory / f"step-{step:012d}.rank-{rank}.commit"


def spoil(path: Path, position: int = -100) -> None:
    """Change one byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)
