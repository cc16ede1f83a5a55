"""What a job's samples were in the last hour, for people who look at it now and then."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gradsieve_hvd.control.telemetry import Telemetry

HOUR = 3600.0
POINT_SECONDS = 10.0
"""Samples come every two seconds or so; a picture of an hour has no room for all of them."""

_MOST_POINTS = 2 * int(HOUR / POINT_SECONDS)


@dataclass(frozen=True, slots=True)
class Point:
    """Some seconds of a training.

    Attributes:
        at: seconds of the coordinator's own clock when its first sample came.
        generation: of the start of ranks that it belongs to.
        plan: generation of the plan that ranks followed.
        mode: in which they trained.
        step: the last one.
        step_seconds: from step to step; mean over the samples, as the next two.
        select_seconds: of these, selecting, encoding and adding up.
        wait_seconds: of these, waiting.
        density: entries sent, of one; None if nobody says.
        loss: the last one; None if nobody says.
        samples: how many there are.
    """

    at: float
    generation: int
    plan: int
    mode: str
    step: int
    step_seconds: float
    select_seconds: float
    wait_seconds: float
    density: float | None
    loss: float | None
    samples: int = 1


@dataclass
class History:
    """The points of the last hour, oldest first. It outlives starts of ranks, but not its coordinator."""

    _points: deque[Point] = field(default_factory=lambda: deque(maxlen=_MOST_POINTS))

    def take(self, telemetry: Telemetry, now: float) -> None:
        """Add a sample: to the last point, unless that is too old or of another start, plan or mode."""
        found = _point(telemetry, now)
        if not self._points or not _alike(self._points[-1], found):
            self._points.append(found)
        else:
            self._points[-1] = _joined(self._points[-1], found)

    def points(self, now: float) -> Sequence[Point]:
        """Return those of the hour until ``now``."""
        return [point for point in self._points if point.at > now - HOUR]


def _point(telemetry: Telemetry, now: float) -> Point:
    numbers = telemetry.numbers
    density = numbers.get("densityPermille")
    return Point(
        at=now,
        generation=telemetry.generation,
        plan=telemetry.plan,
        mode=telemetry.mode or "Synchronous",
        step=telemetry.step,
        step_seconds=numbers.get("stepSeconds", 0.0),
        select_seconds=numbers.get("selectSeconds", 0.0),
        wait_seconds=numbers.get("waitSeconds", 0.0),
        density=None if density is None else density / 1000,
        loss=numbers.get("loss"),
    )


def _alike(last: Point, found: Point) -> bool:
    same = (last.generation, last.plan, last.mode) == (found.generation, found.plan, found.mode)
    return same and found.at < last.at + POINT_SECONDS


def _joined(last: Point, found: Point) -> Point:
    count = last.samples + 1

    def mean(before: float, now: float) -> float:
        return before + (now - before) / count

    return replace(
        found,
        at=last.at,
        step_seconds=mean(last.step_seconds, found.step_seconds),
        select_seconds=mean(last.select_seconds, found.select_seconds),
        wait_seconds=mean(last.wait_seconds, found.wait_seconds),
        samples=count,
    )
