"""What the ranks of a sample job said, from the coordinator's log with timestamps."""

from __future__ import annotations

import datetime as dt
import itertools
import re
from collections import defaultdict
from dataclasses import dataclass, field

_LINE = re.compile(r"^(\S+) \[\d+\] (.*) on (\S+)$")
_START = re.compile(r"(\d+) ranks go on from step (\d+), ([\d.]+) s after the start")
_STEP = re.compile(r"step (\d+) loss")


@dataclass
class Stretch:
    """Steps without an interruption, as one host's rank saw them.

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


def stretches(log: str) -> dict[str, list[Stretch]]:
    """Return what was done on each host, one rank each; a replacement goes on with its host's name."""
    found: defaultdict[str, list[Stretch]] = defaultdict(list)
    for line in log.splitlines():
        if (said := _LINE.match(line)) is None:
            continue
        moment, text, host = said.groups()
        if start := _START.search(text):
            found[host].append(Stretch(int(start[1]), int(start[2]), float(start[3])))
        elif (step := _STEP.search(text)) and found[host]:
            found[host][-1].steps.append(int(step[1]))
            found[host][-1].moments.append(dt.datetime.fromisoformat(moment).timestamp())
    return dict(found)


def setbacks(history: list[Stretch]) -> list[int]:
    """Return how many complete steps were lost at each interruption."""
    pairs = itertools.pairwise(history)
    return [max([before.first, *before.steps]) - after.first for before, after in pairs]
