"""What adaptation gains where a node is slow, on three real nodes of this machine.

    PYTHONPATH=tests/e2e python benchmarks/adaptation_on_a_cluster.py --pairs 5 --json FILE --picture FILE
    PYTHONPATH=tests/e2e python benchmarks/adaptation_on_a_cluster.py --flapping 600 --json FILE

Pairs: the same training of two ranks, once held synchronous and once adapted, in turns. A quarter of a minute
after its first step the node of one rank gets a quarter of a core; what counts is the time from then until
the loss of rank 0, smoothed, is below the target. Flapping: the node is slow every other five seconds, and
changes of the plan are counted.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from adapted_job import DEALT, SLOW_CORES, follows, held, node_of, plan, training
from cluster.local import Cluster
from horovod_job import Job
from operator_process import running_operator

mpl.use("Agg")
from matplotlib import pyplot as plt

TARGET = 0.4
SMOOTHED = 0.98
_WAIT_SECONDS = 600
_FLAP_SECONDS = 5.0
_BEFORE = 15
"""Notes, one a second, before the node becomes slow."""

_LARGE = (("batch_size=256", "batch_size=1024"), ("lr=0.01", "lr=0.05"))
"""What the tests' training is given here: with small batches most of a step is the same for any share."""

_STUDENT_95 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}
"""Of the t distribution, two-sided 95 %, by the number of pairs."""

_LINE = re.compile(r"NOTED (\S+) (\S+) (\S+)")
_PLAN = re.compile(r"^(\S+) .*rank 0: plan (\d+) \((.*)\) from step (\d+) on", re.MULTILINE)


def program() -> str:
    """Return the training of the tests, which also notes time, step and loss every second."""
    text = DEALT
    for tests_value, value in _LARGE:
        assert tests_value in text, tests_value
        text = text.replace(tests_value, value)
    before, after = text.split("sampler = ", 1)
    noting = """
from gradsieve_hvd.control.reported import reported_loss
smooth, noted, count, inner = 2.303, 0.0, 0, step
def step(batch):
    global smooth, noted, count
    inner(batch)
    count += 1
    smooth = SMOOTHED * smooth + (1 - SMOOTHED) * reported_loss()
    if hvd.rank() == 0 and time.time() > noted + 1:
        noted = time.time()
        print(f"NOTED {noted} {count} {smooth}", flush=True)
""".replace("SMOOTHED", str(SMOOTHED))
    return before + noting + "sampler = " + after


def notes(job: Job) -> list[tuple[float, int, float]]:
    """Return seconds since the epoch, steps and smoothed loss, as rank 0 has noted them."""
    return [(float(at), int(step), float(loss)) for at, step, loss in _LINE.findall(job.log())]


def plans(job: Job) -> list[dict[str, Any]]:
    """Return the plans that rank 0 has followed, each with when it began to."""
    found = _PLAN.findall(job.log("--timestamps"))
    return [{"at": _seconds(at), "generation": int(number), "plan": told} for at, number, told, _ in found]


def _seconds(stamp: str) -> float:
    # Go writes nanoseconds, which Python does not read.
    return dt.datetime.fromisoformat(re.sub(r"\.\d+Z$", "Z", stamp)).timestamp()


def trained(cluster: Any, *, adapted: bool) -> dict[str, Any]:
    """Train once with a node that becomes slow; returns what happened, in seconds since that."""
    with training(cluster, program(), adapts=adapted) as job:
        node = node_of(cluster, job, "worker-1")
        job.wait(lambda: len(notes(job)) > _BEFORE, 120, "a quarter of a minute of training")
        node.throttle_cpu(SLOW_CORES)
        began = time.time()
        try:
            job.wait(lambda: notes(job)[-1][2] <= TARGET, _WAIT_SECONDS, "the loss")
        finally:
            node.throttle_cpu(None)
        noted, changed = notes(job), plans(job)
        reason = plan(job).get("evidence", "")
    reached = next(at for at, _, loss in noted if loss <= TARGET)
    first = next(loss for at, _, loss in noted if at >= began)
    return {
        "adapted": adapted,
        "seconds": reached - began,
        "loss_before": first,
        "evidence": reason,
        "notes": [(at - began, step, loss) for at, step, loss in noted],
        "plans": [{**each, "at": each["at"] - began} for each in changed],
    }


def flapped(cluster: Any, seconds: float) -> dict[str, Any]:
    """Train beside a node that is slow every other five seconds; returns the plans that were followed."""
    with training(cluster, program()) as job:
        node = node_of(cluster, job, "worker-1")
        job.wait(lambda: held(job) == ("False", "AsGoodAsItGets"), 120, "even ranks measured")
        before, began = plan(job)["generation"], time.time()
        while time.time() < began + seconds:
            for cores in (SLOW_CORES, None):
                node.throttle_cpu(cores)
                time.sleep(_FLAP_SECONDS)
        job.wait(lambda: follows(plan(job)), 60, "the last plan followed")
        changed = [each for each in plans(job) if each["generation"] > before]
        return {
            "seconds": seconds,
            "changes": plan(job)["generation"] - before,
            "held": held(job),
            "plans": [{**each, "at": each["at"] - began} for each in changed],
        }


def gains(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return what adaptation saves of the time to the loss: the mean over pairs and its 95 % interval."""
    held_ones = [row["seconds"] for row in rows if not row["adapted"]]
    adapted = [row["seconds"] for row in rows if row["adapted"]]
    saved = [1 - ours / theirs for ours, theirs in zip(adapted, held_ones, strict=True)]
    mean = statistics.fmean(saved)
    if len(saved) not in _STUDENT_95:
        return {"mean": mean}
    half = _STUDENT_95[len(saved)] * statistics.stdev(saved) / math.sqrt(len(saved))
    return {"mean": mean, "low": mean - half, "high": mean + half}


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw step time and loss of the last held and the last adapted run, with the modes of the latter."""
    figure, (times, losses) = plt.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")
    for adapted, colour in ((False, "tab:gray"), (True, "tab:blue")):
        row = [row for row in rows if row["adapted"] == adapted][-1]
        name = "adapted" if adapted else "held synchronous"
        at, steps, loss = zip(*row["notes"], strict=True)
        pace = [
            1000 * (later - sooner) / max(after - before, 1)
            for sooner, later, before, after in zip(at, at[5:], steps, steps[5:], strict=False)
        ]
        times.plot(at[5:], pace, color=colour, label=name)
        losses.plot(at, loss, color=colour, label=name)
        losses.plot([row["seconds"]], [TARGET], "o", color=colour)
        if adapted:
            for each in (each for each in row["plans"] if each["at"] >= 0):
                mode = re.search(r"mode (\w+)", each["plan"])
                for axes in (times, losses):
                    axes.axvline(each["at"], color=colour, linestyle=":")
                times.annotate(
                    mode[1] if mode else each["plan"],
                    (each["at"], 1),
                    xycoords=("data", "axes fraction"),
                    xytext=(4, -14),
                    textcoords="offset points",
                )
    for axes in (times, losses):
        axes.axvline(0, color="tab:red")
        axes.grid(visible=True, alpha=0.3)
    times.annotate(
        "a quarter of a core",
        (0, 0),
        xycoords=("data", "axes fraction"),
        xytext=(4, 6),
        textcoords="offset points",
        color="tab:red",
    )
    times.set(ylabel="step, ms", ylim=(0, None))
    losses.axhline(TARGET, color="black", linewidth=0.8)
    losses.set(ylabel="loss of rank 0, smoothed", xlabel="seconds since one of two nodes became slow")
    losses.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--flapping", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = {"date": dt.datetime.now(dt.UTC).date().isoformat(), "target": TARGET}
    with (
        Cluster.start(nodes=3, name="adaptation") as cluster,
        tempfile.TemporaryDirectory() as folder,
        running_operator(cluster, Path(folder) / "log"),
    ):
        rows = []
        for number in range(given.pairs):
            for adapted in (False, True) if number % 2 == 0 else (True, False):
                rows.append(trained(cluster, adapted=adapted))
                kind = "adapted" if adapted else "held"
                sys.stdout.write(f"{kind}: {rows[-1]['seconds']:.1f} s, {rows[-1]['plans']}\n")
                sys.stdout.flush()
        if rows:
            found |= {"pairs": rows, "saved": gains(rows)}
            sys.stdout.write(f"saved: {found['saved']}\n")
        if given.flapping:
            found["flapping"] = flapped(cluster, given.flapping)
            sys.stdout.write(f"flapping: {found['flapping']}\n")
    if given.picture is not None:
        draw(rows, given.picture)
    for row in rows:
        del row["notes"]  # of which the picture is made
    given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
