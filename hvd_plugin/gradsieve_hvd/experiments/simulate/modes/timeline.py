"""Who computes and who waits, and when new weights are made: played with a mode's own policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gradsieve_hvd.server.modes import Mode

from .run import Cluster, Run, Setting
from .stragglers import Delays, Scenario
from .tasks import digits

LOCAL: Final = "local"
"""The mode without a policy: each worker takes some steps by itself, then all exchange."""
_LOCAL_STEPS, _EXCHANGE = 4, 0.4  # of a round: fewer steps than usual, that it can be seen
_LONGEST = 12.0  # an iteration that is drawn ends so soon after what is drawn


@dataclass(frozen=True, slots=True)
class Span:
    """A worker computes. missed: releases that its gradient missed; None if it has become no weights yet."""

    rank: int
    began: float
    ended: float
    missed: int | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """workers: P. horizon: virtual time that is shown. spans: of computing. made: when versions were."""

    workers: int
    horizon: float
    spans: list[Span]
    made: list[float]

    @property
    def computing_share(self) -> float:
        """Of all workers' time, what they compute for."""
        busy = sum(max(min(span.ended, self.horizon) - span.began, 0.0) for span in self.spans)
        return busy / (self.workers * self.horizon)


def played(mode: Mode, scenario: Scenario, workers: int, horizon: float, seed: int) -> Timeline:
    """Return what a mode makes of a cluster, with pushes of whole gradients."""
    cluster = Cluster(scenario, workers, 1.0, horizon + _LONGEST)
    run = Run(digits(), mode, cluster, [Setting(0.01, 0.0)], seed)
    run.play()
    missed = {number: each for made in run.made for number, each in made.missed.items()}
    spans = [
        Span(push.rank, push.now - push.seconds, push.now, missed.get(push.number)) for push in run.pushes
    ]
    return Timeline(workers, horizon, spans, [each.time for each in run.made])


def local_rounds(scenario: Scenario, workers: int, horizon: float, seed: int) -> Timeline:
    """Return rounds of local steps, each of which ends with an exchange when all are there."""
    delays, spans, made, began = Delays(scenario, workers, seed, 1.0), list[Span](), list[float](), 0.0
    while began < horizon:
        ends = []
        for rank in range(workers):
            now = began
            for _ in range(_LOCAL_STEPS):
                ended = now + delays.computing(rank, now, 1.0)
                spans.append(Span(rank, now, ended, 0))
                now = ended
            ends.append(now)
        began = max(ends) + _EXCHANGE
        made.append(began)
    return Timeline(workers, horizon, spans, made)
