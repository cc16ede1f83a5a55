"""Whether a rank's memory stays level over thousands of small steps, per method.

``python benchmarks/memory_over_steps.py`` runs every method on two ranks, one job after another, and prints a
line each: the memory that rank 0 holds for itself (``RssAnon``) after some steps, and the slope of the run's
second half. ``--method`` and ``--steps`` choose less. Tensors of several sizes, a learning rate that keeps
gradients changing, and a loss recorded per sample: what varies in real trainings (payload sizes, densities,
what waits in lists) varies here.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from pathlib import Path

_METHODS = ("dense", "fp16", "topk", "group_topk", "laplace", "sampled", "layered", "importance")
_RANKS = 2
_SAMPLES = 40  # of the memory, over a run
_BATCH = 16
_WIDTHS = (64, 320, 160, 256, 10)
_KIB = 1024
_MEBI = 1024


def train(method: str, steps: int, file: Path) -> None:
    """Train as one rank; rank 0 writes [step, KiB] pairs."""
    import horovod.torch as hvd
    import torch

    import gradsieve
    import gradsieve_hvd

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for inside, outside in itertools.pairwise(_WIDTHS):
        layers += [torch.nn.Linear(inside, outside), torch.nn.Tanh()]
    model = torch.nn.Sequential(*layers)
    stock = {"dense": hvd.Compression.none, "fp16": hvd.Compression.fp16}
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        named_parameters=model.named_parameters(),
        compression=stock[method] if method in stock else getattr(gradsieve_hvd.Compression, method)(0.01),
    )
    generator = torch.Generator().manual_seed(hvd.rank())
    seen = []
    for step in range(steps):
        optimizer.zero_grad()
        inputs = torch.randn(_BATCH, _WIDTHS[0], generator=generator)
        targets = inputs[:, : _WIDTHS[-1]].argmax(dim=1)
        gradsieve.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        if (step + 1) % max(1, steps // _SAMPLES) == 0:
            seen.append((step + 1, _own_memory()))
    if hvd.rank() == 0:
        file.write_text(json.dumps(seen))


def _own_memory() -> int:
    """KiB that belong to this process alone."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1])
    raise RuntimeError("/proc/self/status has no RssAnon")


def _slope(seen: list[tuple[int, int]]) -> float:
    """KiB per 1 000 steps of the line of least squares."""
    steps, sizes = zip(*seen, strict=True)
    mean_step, mean_size = sum(steps) / len(steps), sum(sizes) / len(sizes)
    above = sum((step - mean_step) * (size - mean_size) for step, size in seen)
    return 1000 * above / sum((step - mean_step) ** 2 for step in steps)


def main() -> None:
    """Start a job per method and print what came of it."""
    from gradsieve_hvd.launcher import Job, run

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", choices=_METHODS, action="append")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rank-file", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.rank_file is not None:
        train(chosen.method[0], chosen.steps, chosen.rank_file)
        return
    with tempfile.TemporaryDirectory() as folder:
        for method in chosen.method or _METHODS:
            file = Path(folder) / method
            command = (sys.executable, __file__, "--method", method, "--steps", str(chosen.steps))
            outcome = run(Job((*command, "--rank-file", str(file)), _RANKS))
            if outcome.status:
                raise SystemExit(outcome.status)
            seen = json.loads(file.read_text())
            shown = "  ".join(f"{size / _MEBI:.1f}" for _, size in seen[:: _SAMPLES // 8])
            half = seen[len(seen) // 2 :]
            print(f"{method:11}{shown}  MiB; second half {_slope(half):+.0f} KiB per 1 000 steps", flush=True)


if __name__ == "__main__":
    main()
