"""What the ranks of a sample job said, from the coordinator's log with timestamps."""

from __future__ import annotations

import datetime as dt
import itertools
import re
from collections import defaultdict
from dataclasses import dataclass, field

_LINE = re.compile(r"^(\S+) \[(\d+)\] (.*)$")
_START = re.compile(r"(\d+) ranks go on from step (\d+), ([\d.]+) s after the start")
_STEP = re.compile(r"step (\d+) loss")


@dataclass
class Stretch:
    """Steps without an interruption, as one rank saw them.

    Attributes:
        ranks: how many there were.
        first: the step from which they went on.
        age: of the rank's process then, in seconds: one that goes on in place is not young again.
        steps: the steps that were taken, each counted when it was complete.
        moments: when each was, in seconds since the epoch.
    """

    ranks: int
    first: int
    age: float
    steps: list[int] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)


def stretches(log: str) -> dict[int, list[Stretch]]:
    """Return what each rank did, by the number that the coordinator puts before its lines."""
    found: defaultdict[int, list[Stretch]] = defaultdict(list)
    for line in log.splitlines():
        if (said := _LINE.match(line)) is None:
            continue
        moment, rank, text = said[1], int(said[2]), said[3]
        if start := _START.search(text):
            found[rank].append(Stretch(int(start[1]), int(start[2]), float(start[3])))
        elif (step := _STEP.search(text)) and found[rank]:
            found[rank][-1].steps.append(int(step[1]))
            found[rank][-1].moments.append(dt.datetime.fromisoformat(moment).timestamp())
    return dict(found)


def setbacks(history: list[Stretch]) -> list[int]:
    """Return how many complete steps a rank lost at each interruption."""
    pairs = itertools.pairwise(history)
    return [max([before.first, *before.steps]) - after.first for before, after in pairs]
