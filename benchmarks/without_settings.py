"""What training without settings comes to beside dense training and paths that are named, by optimizer.

``python benchmarks/without_settings.py`` trains the small character model from the same weights on the same
samples by `gradsieve_hvd.DistributedOptimizer`, ranks as threads, and prints a line each: the held-out loss
at the end, and what rank 0 sends per step. Then how far means over seeds are from those of dense training by
the same optimizer and rate. Time is not measured: threads of one process share its cores.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import statistics
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

import gradsieve_hvd
from gradsieve_hvd.experiments.tasks import TASKS, Task
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks

_KILO = 1e3
_BEFORE = 10
"""Steps from which on bytes are counted: weights and settings are compared in the first ones."""

CONTENDERS: Mapping[str, dict[str, Any]] = {
    "dense": {"exchange": "dense"},
    "none": {},
    "fp16": {"exchange": "fp16"},
    "bf16": {"exchange": "bf16"},
    "lowrank": {"exchange": "lowrank"},
    "laplace": {"compression": gradsieve_hvd.Compression.laplace(density=0.01)},
    "int4": {"compression": gradsieve_hvd.Compression.laplace(density=0.03, value_dtype="int4")},
}
"""Arguments of `gradsieve_hvd.DistributedOptimizer`; "none" are none."""

OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, momentum=0.9),
    "sgd-0": torch.optim.SGD,
    "nesterov": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    "adamw": torch.optim.AdamW,
    "adamw-0.5": partial(torch.optim.AdamW, betas=(0.5, 0.999)),
    "adamw-0": partial(torch.optim.AdamW, betas=(0.0, 0.999)),
    "adam-0.5": partial(torch.optim.Adam, betas=(0.5, 0.999)),
}


def train(
    task: Task, ranks: int, steps: int, optimizer: str, rate: float, seed: int, settings: dict[str, Any]
) -> tuple[float, float]:
    """Return the held-out loss at the end, and the bytes that rank 0 sends per step."""
    initial = task.model(seed)  # made here: threads share the random number generator

    def run(transport: ThreadTransport) -> tuple[float, float]:
        model = copy.deepcopy(initial)
        made = gradsieve_hvd.DistributedOptimizer(
            OPTIMIZERS[optimizer](model.parameters(), lr=rate),
            model.named_parameters(),
            transport=transport,
            **settings,
        )
        scheduler = CosineAnnealingLR(made, steps)
        sent_before = 0
        for step in range(steps):
            if step == _BEFORE:
                sent_before = transport.sent_bytes
            made.zero_grad()
            task.loss(model, step, transport.rank, seed).backward()
            made.step()
            scheduler.step()
        sent = (transport.sent_bytes - sent_before) / (steps - _BEFORE)
        return task.evaluate(model) if transport.rank == 0 else 0.0, sent

    return run_ranks(ranks, run)[0]


def summary(rows: Iterable[dict[str, Any]]) -> str:
    """Return means over seeds, and how far each is above dense training."""
    kinds: dict[tuple[str, float, str], list[float]] = {}
    for row in rows:
        kinds.setdefault((row["optimizer"], row["rate"], row["contender"]), []).append(row["loss"])
    lines = []
    for (optimizer, rate, contender), losses in kinds.items():
        mean, dense = statistics.fmean(losses), kinds.get((optimizer, rate, "dense"))
        above = f"{mean / statistics.fmean(dense) - 1:+.1%} of dense" if dense else ""
        lines.append(f"{optimizer:10} {rate:g} {contender:8} {mean:.3f} {above} ({len(losses)} seeds)")
    return "\n".join(lines)


def main() -> None:
    """Print a line per training and a table, and write all of it with --json."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=["adamw"])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.008])
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--json", type=Path, help="goes on with what is there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    task: Task = TASKS["charlm-small"]()
    rows = json.loads(given.json.read_text()) if given.json and given.json.exists() else []
    for seed, optimizer, rate, name in itertools.product(
        given.seeds, given.optimizers, given.rates, given.contenders
    ):
        row = {"optimizer": optimizer, "rate": rate, "contender": name, "seed": seed}
        row |= {"ranks": given.ranks, "steps": given.steps}
        if any(row.items() <= each.items() for each in rows):
            continue
        loss, sent = train(task, given.ranks, given.steps, optimizer, rate, seed, CONTENDERS[name])
        rows.append({**row, "loss": loss, "bytes_per_step": sent})
        shown = f"{loss:.3f}; {sent / _KILO:.1f} kB a step"
        print(f"{optimizer} {rate:g} seed {seed} {name}: {shown}", flush=True)
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(summary(rows))


if __name__ == "__main__":
    main()
