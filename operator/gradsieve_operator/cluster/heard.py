"""What a coordinator said when it was last asked, and whether that will do: pure, no network."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradsieve_operator import contract
from gradsieve_operator.decide import CoordinatorStatus, Pod

_LATELY_SECONDS = 75.0
"""Somewhat longer than from one question to a coordinator to the next."""

_JUST_NOW_SECONDS = 5.0
"""What writing and deleting objects takes on a busy API server, before the next look of the same turn."""


@dataclass(frozen=True)
class Heard:
    """The last answer of a coordinator, or that there was none; since then nobody has told it anything.

    Attributes:
        uid: of its pod; empty if there was none to ask.
        status: that it answered; None if it did not.
        at: when, of the monotonic clock.
        silence, unanswered: see `ObservedState`.
        acted: whether anything else was done for the job since.
    """

    uid: str
    status: CoordinatorStatus | None
    at: float
    silence: float = 0.0
    unanswered: float = 0.0
    acted: bool = False

    def will_do(self, leader: Pod, now: float) -> bool:
        """Whether it need not be asked again before it is told something else.

        All was well a moment ago, and what has ended or broken since makes its pod not ready, or the call
        fail by which it is told.

        Args:
            leader: the pod of the coordinator that is to be told.
            now: of the monotonic clock.
        """
        if self.status is None or self.acted:
            return False
        well = self.status.state == contract.STATE_RUNNING and not self.status.missing
        return well and leader.uid == self.uid and leader.ready and now - self.at < _LATELY_SECONDS

    def is_news(self, leader: Pod, now: float) -> bool:
        """Whether the same turn's next look may go by it: what a slow coordinator says would be no newer, and
        one that is frozen would keep lost workers from being replaced.

        Args:
            leader: the pod of the coordinator.
            now: of the monotonic clock.
        """
        return leader.uid == self.uid and now - self.at < _JUST_NOW_SECONDS

    def by(self, now: float) -> CoordinatorStatus | None:
        """Return what it said, with its last samples as old as they are at ``now``."""
        if self.status is None:
            return None
        age, window, passed = self.status.telemetry_age, self.status.window, now - self.at
        if age is None:
            return self.status
        older = None if window is None else replace(window, age=window.age + passed)
        return replace(self.status, telemetry_age=age + passed, window=older)
