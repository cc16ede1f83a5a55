"""What steps really take on uneven ranks of this machine, to be replayed by ``benchmarks/adaptation.py``.

``python benchmarks/record_paces.py --json benchmarks/recorded_paces.json`` has four ranks compute the same
step again and again, without waiting for each other: even ones, some held to less processor time by
``gradsieve run --slow``, and some beside a program that takes all processors for 15 s of each 45.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

RANKS = 4
WIDTH, BATCH = 384, 128
_BUSY_SECONDS, _PERIOD_SECONDS = 15.0, 45.0
_START_SECONDS = 8.0
"""Until all ranks have imported torch."""

CLUSTERS: dict[str, Sequence[str]] = {
    "even, recorded": (),
    "a rank 4 times as slow, recorded": ("--slow", "3:4x"),
    "two 2 and 3 times as slow, recorded": ("--slow", "2:2x", "--slow", "3:3x"),
    "slow in turns, recorded": ("--slow", "wander:4x"),
    "slow at times, recorded": ("--slow", "transient:3x"),
}
BESIDE = "beside another program, recorded"


def compute(until: float) -> list[tuple[float, float]]:
    """Return beginning and duration of steps until then, by the clock, in seconds."""
    torch.set_num_threads(1)
    layers, batch = [torch.randn(WIDTH, WIDTH) for _ in range(8)], torch.randn(BATCH, WIDTH)
    steps = []
    while (began := time.time()) < until:
        for _ in range(16):
            for layer in layers:
                torch.tanh_(torch.mm(batch, layer))
        steps.append((began, time.time() - began))
    return steps


def record(options: Sequence[str], seconds: float, folder: Path) -> list[list[tuple[float, float]]]:
    """Return the steps of each rank."""
    until = time.time() + _START_SECONDS + seconds
    rank = [sys.executable, __file__, "--rank-into", folder, "--until", str(until)]
    command = [sys.executable, "-m", "gradsieve_hvd", "run", "-np", str(RANKS), *options, "--", *rank]
    subprocess.run(command, check=True, timeout=seconds + 120)
    return [json.loads((folder / f"{number}.json").read_text()) for number in range(RANKS)]


@contextmanager
def another_program(seconds: float) -> Iterator[None]:
    """Within, all processors have something else to do at times."""
    until = time.time() + _START_SECONDS + seconds
    processors = range(os.cpu_count() or 1)
    busy = [multiprocessing.Process(target=_spin, args=(until,), daemon=True) for _ in processors]
    for each in busy:
        each.start()
    yield
    for each in busy:
        each.join()


def _spin(until: float) -> None:
    began = time.time()
    while (now := time.time()) < until:
        if (now - began) % _PERIOD_SECONDS > _BUSY_SECONDS:
            time.sleep(0.05)


def paces(ranks: Sequence[Sequence[tuple[float, float]]]) -> list[list[float]]:
    """Return, of each rank, how slow its steps were that began when all ranks had, one after the other.

    The unit is the median step of the fastest rank.
    """
    unit = min(statistics.median(seconds for _, seconds in steps) for steps in ranks)
    began = max(steps[0][0] for steps in ranks)
    return [[round(seconds / unit, 2) for at, seconds in steps if at >= began] for steps in ranks]


def main() -> None:
    """Record, or be a rank that is recorded."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank-into", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank_into is not None:
        steps = compute(given.until)
        (given.rank_into / f"{os.environ['RANK']}.json").write_text(json.dumps(steps))
        return
    found: dict[str, Any] = {"date": dt.datetime.now(dt.UTC).date().isoformat(), "clusters": {}}
    for name, options in CLUSTERS.items():
        with tempfile.TemporaryDirectory() as folder:
            found["clusters"][name] = paces(record(options, given.seconds, Path(folder)))
    with tempfile.TemporaryDirectory() as folder, another_program(given.seconds):
        found["clusters"][BESIDE] = paces(record((), given.seconds, Path(folder)))
    for name, ranks in found["clusters"].items():
        shown = ", ".join(f"{statistics.median(steps):.2f}" for steps in ranks)
        print(f"{name}: median steps of ranks {shown}; {sum(map(len, ranks))} steps")
    if given.json is not None:
        given.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
