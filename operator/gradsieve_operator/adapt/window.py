"""What the coordinator has measured lately: read with suspicion, since a job's pods are its author's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

from gradsieve_operator.adapt.promised import Promised, read_promised
from gradsieve_operator.errors import SpecError
from gradsieve_operator.spec.fields import Fields
from gradsieve_operator.spec.values import LABEL_VALUE, MAX_LABEL_VALUE

_SHORTEST, _LONGEST = 1e-7, 1e6
"""Seconds of a step that are believed."""

_MANY: Final = 2**53 - 1
_ROUNDING: Final = 1.001


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds that ranks work in a step, without waiting.

    Attributes:
        harmonic: of a rank if all had the same rate in sum: the harmonic mean over ranks.
        paced: the same if nobody were faster than the median rank.
        slowest: of the rank that is slowest on the average.
        peak: of whichever rank was the slowest in each sample, on the average.
    """

    harmonic: float
    paced: float
    slowest: float
    peak: float


@dataclass(frozen=True, slots=True)
class Window:
    """The last samples of one plan.

    Attributes:
        generation: of the plan that ranks followed in all of them; 0 for none.
        samples: how many there are.
        seconds: that they cover.
        age: seconds since the last one.
        step: seconds from step to step, on the average.
        deviation: standard deviation of that from sample to sample.
        delay: seconds of a step in which even the busiest rank waits: what exchanging takes.
        work: of the ranks.
        host: of the rank that is slowest on the average; empty when nobody says.
        throttled: part of the time in which that rank's container had used up its CPU limit.
        recent: median step of the later half of the samples; None if nobody says. A plan's first steps may
            not be what it makes of later ones: shares change some steps after the mode.
        silent: how many ranks tell nothing of themselves, and are in none of these numbers.
        promised: what a step should take under other plans; empty when nobody says.
        bandwidth_seconds: that what a step receives would take if nothing else delayed it; None when the link
            was not measured.
        trouble: what the cluster knows of its node; empty for nothing. It explains, and decides nothing.
    """

    generation: int
    samples: int
    seconds: float
    age: float
    step: float
    deviation: float
    delay: float
    work: Work
    host: str = ""
    throttled: float = 0.0
    trouble: str = ""
    bandwidth_seconds: float | None = None
    recent: float | None = None
    silent: int = 0
    promised: Promised = field(default_factory=Promised)

    @property
    def noise(self) -> float:
        """Standard error of ``step``, as a part of it."""
        return self.deviation / self.step / math.sqrt(self.samples)

    def flaw(self) -> str:
        """Return why nothing can be concluded from it; empty when something can."""
        times = (self.step, self.work.harmonic, self.work.paced, self.work.slowest, self.work.peak)
        if not all(_SHORTEST <= each <= _LONGEST for each in times):
            return f"a step or its work is not between {_SHORTEST:g} and {_LONGEST:g} s"
        if not all(0 <= each <= _LONGEST for each in (self.deviation, self.delay, self.seconds, self.age)):
            return "a time is negative or absurd"
        if not 1 <= self.samples <= _MANY:
            return "there are no samples"
        ascending = (self.work.harmonic, self.work.paced, self.work.slowest, self.work.peak)
        if any(low > high * _ROUNDING for low, high in itertools.pairwise(ascending)):
            return "the times of the ranks contradict one another"
        if self.delay > self.step * _ROUNDING:
            return "ranks wait for longer than a step takes"
        return ""


def read_window(found: Mapping[str, Any], age: float) -> Window:
    """Read what a coordinator serves as ``window``; whether it makes sense says `Window.flaw`.

    Args:
        found: as it is served.
        age: seconds since the last sample.

    Raises:
        SpecError: a field is missing, or no number that a window can hold.
    """
    fields = Fields(found, "window")
    work = fields.object("work")
    harmonic, delay = _seconds(work, "harmonic"), _seconds(fields, "delaySeconds")
    return Window(
        generation=fields.number_or("planGeneration", 0, 0, _MANY),
        samples=fields.number_or("samples", 0, 0, _MANY),
        seconds=_seconds(fields, "seconds"),
        age=age,
        step=_seconds(fields, "stepSeconds"),
        deviation=_seconds(fields, "stepDeviation"),
        delay=delay,
        work=Work(
            harmonic=harmonic,
            paced=_seconds(work, "paced"),
            slowest=_seconds(work, "slowest"),
            peak=_seconds(work, "peak"),
        ),
        host=fields.name("slowestHost", LABEL_VALUE, MAX_LABEL_VALUE) or "",
        throttled=_throttled(fields),
        bandwidth_seconds=_bandwidth_seconds(fields),
        recent=_recent(fields),
        silent=fields.number_or("silentRanks", 0, 0, _MANY),
        promised=read_promised(fields.values.get("expected"), harmonic, delay),
    )


def _recent(fields: Fields) -> float | None:
    """Return what later steps took; None of an image of an earlier version."""
    value: Any = fields.values.get("recentStepSeconds")
    sound = type(value) in (int, float) and _SHORTEST <= value <= _LONGEST
    return float(value) if sound else None


def _bandwidth_seconds(fields: Fields) -> float | None:
    """Return what the bytes of a step take; None of an image of an earlier version, or without a measure."""
    link: Any = fields.values.get("link")
    if not isinstance(link, Mapping):
        return None
    received, rate = link.get("receivedBytesPerStep"), link.get("bytesPerSecond")
    if not (_is_amount(received) and _is_amount(rate)) or not rate:
        return None
    seconds = float(received / rate)
    return seconds if seconds <= _LONGEST else None


def _is_amount(value: Any) -> TypeGuard[float]:
    """Whether it is a number that may count bytes; JSON knows larger ones than a float can hold."""
    return type(value) in (int, float) and 0 <= value <= _MANY


def _throttled(fields: Fields) -> float:
    """Return a part of one; an image of an earlier version says nothing, and nothing is decided by it."""
    value: Any = fields.values.get("slowestThrottledShare")
    return float(value) if type(value) in (int, float) and 0 <= value <= 1 else 0.0


def _seconds(fields: Fields, name: str) -> float:
    value: Any = fields.values.get(name)
    if type(value) not in (int, float) or not 0 <= value <= _LONGEST:
        raise SpecError(fields.at(name), f"must be a number of seconds from 0 to {_LONGEST:g}")
    return float(value)
