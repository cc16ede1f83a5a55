"""What a coordinator said when it was last asked, and whether that will do: pure, no network."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradsieve_operator import contract
from gradsieve_operator.decide import CoordinatorStatus, Pod

_LATELY_SECONDS = 75.0
"""Somewhat longer than from one question to a coordinator to the next."""


@dataclass(frozen=True)
class Heard:
    """The last answer of a coordinator, since which nobody has told it anything.

    Attributes:
        uid: of its pod.
        status: that it answered.
        at: when, of the monotonic clock.
    """

    uid: str
    status: CoordinatorStatus
    at: float

    def will_do(self, leader: Pod, now: float) -> bool:
        """Whether it need not be asked again before it is told something else.

        All was well a moment ago, and what has ended or broken since makes its pod not ready, or the call
        fail by which it is told.

        Args:
            leader: the pod of the coordinator that is to be told.
            now: of the monotonic clock.
        """
        well = self.status.state == contract.STATE_RUNNING and not self.status.missing
        return well and leader.uid == self.uid and leader.ready and now - self.at < _LATELY_SECONDS

    def by(self, now: float) -> CoordinatorStatus:
        """Return what it said, with its last samples as old as they are at ``now``."""
        age, window, passed = self.status.telemetry_age, self.status.window, now - self.at
        if age is None:
            return self.status
        older = None if window is None else replace(window, age=window.age + passed)
        return replace(self.status, telemetry_age=age + passed, window=older)
