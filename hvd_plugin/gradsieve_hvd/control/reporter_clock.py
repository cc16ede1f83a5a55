"""How long a rank's steps take, and how much of that it waits for others."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from gradsieve_hvd.engine.observer import SilentObserver, Submitted


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Means over some steps. seconds: from step to step. wait_seconds: without anything of its own to do.
    select_seconds: selecting and encoding, and adding up what has arrived. steps: how many.
    """

    seconds: float
    wait_seconds: float
    select_seconds: float
    steps: int


class StepClock(SilentObserver):
    """Sums up times between two readings. Waiting is what passes after a gradient was submitted, or decoded,
    until the next one has arrived; not what lies between two gradients of the backward pass.
    """

    def __init__(self) -> None:
        self._began = self._idle_since = time.monotonic()
        self._steps = 0
        self._waited = self._selected = 0.0
        self._idle = False
        self._adding_since: float | None = None

    def submitted(self, gradient: Submitted) -> None:
        """The rank has worked on a gradient; or is told of one only now, what was sent of it being known."""
        self._selected += gradient.seconds
        if not self._idle:
            self._idle_since = time.monotonic()

    def waits_for(self, names: Collection[str]) -> None:  # noqa: ARG002 - see StepObserver
        """The rank has nothing else to do."""
        self._idle, self._idle_since = True, time.monotonic()

    def all_arrived(self) -> None:
        """Nothing is under way any more."""
        self._idle, self._adding_since = False, None

    def rolled_back(self) -> None:
        """Nothing is under way any more, whatever had arrived."""
        self._idle, self._adding_since = False, None

    def arrived(self, name: str, size: int) -> None:  # noqa: ARG002 - see StepObserver
        """A gradient that the rank had to wait for is here."""
        self._adding_since = time.monotonic()
        self._waited += self._adding_since - self._idle_since

    def applied(self, name: str) -> None:  # noqa: ARG002 - see StepObserver
        """The rank has worked on a gradient."""
        self._idle_since = time.monotonic()
        if self._adding_since is not None:
            self._selected += self._idle_since - self._adding_since
            self._adding_since = self._idle_since

    def step_taken(self) -> None:
        """The optimizer has stepped."""
        self._steps += 1

    def round_taken(self, steps: int, waited: float) -> None:
        """The optimizer has made steps by itself, and has then waited for the others."""
        self._steps += steps
        self._waited += waited

    def read(self) -> StepTimes:
        """Return the means since the last reading, and begin anew; without a step as if there was one."""
        now = time.monotonic()
        steps = max(self._steps, 1)
        times = StepTimes((now - self._began) / steps, self._waited / steps, self._selected / steps, steps)
        self._began, self._steps, self._waited, self._selected = now, 0, 0.0, 0.0
        return times
