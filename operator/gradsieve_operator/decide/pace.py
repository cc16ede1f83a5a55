"""How often the operator listens to coordinators, writes down what they report, and looks at Secrets."""

from __future__ import annotations

from dataclasses import dataclass, replace

_WRITTEN_A_SECOND, _SELDOM = 16, 60.0
"""Samples of all jobs that are written in a second; no seldomer than this, as older ones are called stale."""

_BUSY_DECIDING = 15.0
"""The soonest that a job whose plan follows what is measured is asked for a decision while jobs wait to be
looked at."""

_FEW_JOBS = 32
"""Up to so many, everything is written as it comes."""

_ASKED_A_SECOND, _SELDOM_ASKED, _BUSY_ASKED = 32, 30.0, 60.0
"""Coordinators of jobs that train and follow nothing that is measured, that are asked in a second; each of
them no seldomer than this, and of all jobs no seldomer than that while jobs wait to be looked at."""

_BUSY_SECONDS, _SETTLING_SECONDS, _BUSY_STARTING_SECONDS = 120.0, 2.0, 1.5
"""While jobs wait to be looked at: from one written sample to the next, for which states settle, and from one
question whether ranks run to the next."""


@dataclass(frozen=True)
class Pace:
    """Seconds from one call to a coordinator to the next, and from one written sample to the next.

    What changes a pod, its coordinator's readiness among it, is an event and waits for none of these.

    Attributes:
        starting: while ranks do not run, or the coordinator lacks what it was told.
        expecting: while ranks run, and something that will be said in a moment is waited for.
        steady: while ranks run and nothing is expected. A job costs one TLS handshake each time.
        adapted: likewise, where the plan follows what is measured.
        deciding: the soonest that such a job is looked at again as something may be decided then.
        relaxed: likewise, where the plan follows nothing that is measured and nobody is missing.
        telemetry: between two samples that are written to a job's status: each is a write to the API server.
        details: between two writes of a job's status of which the second says nothing new but counts of pods
            and words of messages.
        patience: for which a status may be held back that says nothing new but why adaptation does not change
            the plan: that changes several times a minute.
        settling: for which a status may be held back that nothing that is done depends on: what changes
            again meanwhile is written once.
        following: for which it may be after nothing but a plan was sent: where ranks follow the plan by then,
            that it was sent and that they follow it is one write.
        secrets: between two readings of the Secrets of a job of which nothing else says that one is damaged.
    """

    starting: float = 0.5
    expecting: float = 3.0
    steady: float = 15.0
    adapted: float = 15.0
    deciding: float = 3.0
    relaxed: float = 15.0
    telemetry: float = 30.0
    details: float = 2.0
    patience: float = 0.0
    settling: float = 0.0
    following: float = 2.0
    secrets: float = 600.0

    def among(self, jobs: int, *, busy: bool = False) -> Pace:
        """Return the pace with so many jobs: there is more to do than to ask for their samples, and a server
        has more to do than to write them down.

        Args:
            jobs: how many there are.
            busy: whether more of them are due than are looked at.
        """
        seldom = _BUSY_SECONDS if busy else min(jobs / _WRITTEN_A_SECOND, _SELDOM)
        relaxed = max(self.steady, _BUSY_ASKED if busy else min(jobs / _ASKED_A_SECOND, _SELDOM_ASKED))
        telemetry = max(self.telemetry, seldom)
        settling = max(self.settling, _SETTLING_SECONDS if busy else 0.0)
        starting = max(self.starting, _BUSY_STARTING_SECONDS if busy else 0.0)
        return replace(
            self,
            starting=starting,
            adapted=max(self.steady, _BUSY_ASKED if busy else 0.0),
            deciding=max(self.deciding, _BUSY_DECIDING if busy else 0.0),
            relaxed=relaxed,
            telemetry=telemetry,
            patience=max(self.patience, seldom if jobs > _FEW_JOBS else 0.0),
            settling=settling,
        )
