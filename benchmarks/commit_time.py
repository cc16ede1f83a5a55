"""What a commit of a TrainingState costs, beside copying as many bytes in memory.

Run on two ranks or more (with one there are no residuals): ``gradsieve run -np 2 -- python
benchmarks/commit_time.py``. Prints, per rank, the processor time of the thread that commits (a machine shared
with others does not disturb it): the minimum over some commits, into fresh memory (the first ones) and into
that of an older commit.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import horovod.torch as hvd
import torch

import gradsieve_hvd

_MILLIONS = 16  # parameters of the model; a commit holds weights, momenta and residuals
_LAYERS = 8
_COMMITS = 6
_KEEP = 2


def seconds(work: Callable[[], object]) -> float:
    """Processor time of this thread."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


def main() -> None:
    """Train one step, commit a few times, print."""
    hvd.init()
    torch.set_num_threads(1)
    side = int((_MILLIONS * 1e6 / _LAYERS) ** 0.5)
    model = torch.nn.Sequential(*(torch.nn.Linear(side, side, bias=False) for _ in range(_LAYERS)))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        named_parameters=model.named_parameters(),
        compression=gradsieve_hvd.Compression.laplace(density=0.01),
    )
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        state = gradsieve_hvd.TrainingState(
            model, optimizer, directory=Path(folder) / str(hvd.rank()), keep=_KEEP
        )
        state.restore()
        first = seconds(lambda: state.commit(1))
        fresh = min(seconds(lambda step=step: state.commit(step)) for step in range(2, _KEEP + 2))
        again = min(
            seconds(lambda step=step: state.commit(step)) for step in range(_KEEP + 2, _KEEP + 2 + _COMMITS)
        )
        size = max(path.stat().st_size for path in (Path(folder) / str(hvd.rank())).iterdir())
        restored = seconds(state.restore)
    source = torch.empty(size, dtype=torch.uint8).random_()
    target = torch.zeros_like(source)
    copied = min(seconds(lambda: target.copy_(source)) for _ in range(_COMMITS))
    rows = (
        ("copying as many bytes", copied),
        ("commit, written over an older one", again),
        ("commit, into fresh memory", fresh),
        ("first commit, read back", first),
        ("restore", restored),
    )
    print(f"rank {hvd.rank()}: {size / 1e6:.0f} MB of weights, momenta and residuals")
    for name, spent in rows:
        print(
            f"  {name:36}{1e3 * spent:8.1f} ms{size / spent / 1e9:7.2f} GB/s{spent / copied:7.1f} x copying"
        )


if __name__ == "__main__":
    main()
