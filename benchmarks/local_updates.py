"""What local updates lose per step and save in bytes: AdamW on the small character model, ranks as threads.

``python benchmarks/local_updates.py`` trains densely, by 1 % top-k at every step, and with local steps, from
the same weights on the same samples, and prints a line each: the held-out loss at several steps, and what one
rank sends per step to the others. Time is not measured: threads of one process share its cores.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
from pathlib import Path
from typing import Any

import torch

import gradsieve_hvd
from gradsieve_hvd.experiments.tasks import TASKS, Task
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks

_KILO = 1e3


def contenders(local_steps: list[int]) -> dict[str, dict[str, Any]]:
    """Return the arguments of `gradsieve_hvd.DistributedOptimizer` by name; one with values that are hardly
    rounded, at the first H.
    """
    top = gradsieve_hvd.Compression.topk(density=0.01, min_elements=4096, value_dtype="float16")
    local = {f"local, H = {steps}": {"mode": "local", "local_steps": steps} for steps in local_steps}
    exact = gradsieve_hvd.Compression.group_topk(
        density=64 / 4096, group_size=4096, min_elements=4096, value_dtype="bfloat16"
    )
    unrounded = {"local, bf16": {"mode": "local", "local_steps": local_steps[0], "compression": exact}}
    return {"dense": {"exchange": "dense"}, "topk 1 %": {"compression": top}, **local, **unrounded}


def train(task: Task, ranks: int, steps: int, every: int, rate: float, seed: int, settings: Any) -> Any:
    """Return the held-out losses at every ``every``-th step, and the bytes that rank 0 sends per step."""
    initial = task.model(seed)  # made here: threads share the random number generator

    def run(transport: ThreadTransport) -> Any:
        model = copy.deepcopy(initial)
        plain = torch.optim.AdamW(model.parameters(), lr=rate)
        optimizer = gradsieve_hvd.DistributedOptimizer(
            plain, model.named_parameters(), transport=transport, **settings
        )
        losses = []
        for step in range(steps):
            optimizer.zero_grad()
            task.loss(model, step, transport.rank, seed).backward()
            optimizer.step()
            if (step + 1) % every == 0:
                if settings.get("mode") == "local":
                    optimizer.synchronize()  # H divides it: nothing is left to exchange
                losses.append(task.evaluate(model) if transport.rank == 0 else None)
        return losses, transport.sent_bytes / steps

    return run_ranks(ranks, run)[0]


def main() -> None:
    """Print a table, and write it with --json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--every", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.002])
    parser.add_argument("--local-steps", type=int, nargs="+", default=[15, 50])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    task, rows = TASKS["charlm-small"](), []
    named = contenders(given.local_steps).items()
    for (name, settings), rate, seed in itertools.product(named, given.rates, range(given.seeds)):
        losses, sent = train(task, given.ranks, given.steps, given.every, rate, seed, settings)
        rows.append({"name": name, "rate": rate, "seed": seed, "losses": losses, "bytes_per_step": sent})
        shown = " ".join(f"{loss:.3f}" for loss in losses)
        print(f"{name:14} rate {rate:g} seed {seed}: {shown}; {sent / _KILO:.2f} kB per step", flush=True)
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
