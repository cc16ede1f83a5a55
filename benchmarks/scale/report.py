"""What a run has shown, as a row of the result and the details behind it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scale import audited
from scale.changes import COUNTED, percentile
from scale.sizes import Sizes


@dataclass(frozen=True)
class Facts:
    """What was seen.

    Attributes:
        sizes: of the cluster.
        seconds: latencies by kind of change.
        lost: changes that have not arrived, by kind.
        requests: of the operator.
        steady: when nothing was changed: from and to, seconds since the epoch.
        changed: when jobs were changed, likewise.
        led_until: when the leader was killed: its successor reads all jobs once more.
        expiry: when the killed leader's Lease expired.
        successor: name of the job that was made just then.
        peak: MiB of all replicas together at most.
        peaks: MiB of each at most.
        planned: processor seconds of planning.
        processors: used on average, by phase and part.
        modes: plans that coordinators were told, by their mode.
    """

    sizes: Sizes
    seconds: Mapping[str, Sequence[float]]
    lost: Mapping[str, int]
    requests: Sequence[audited.Request]
    steady: tuple[float, float]
    changed: tuple[float, float]
    led_until: float
    expiry: float
    successor: str
    peak: float
    peaks: Mapping[str, float]
    planned: Mapping[str, float]
    processors: Mapping[str, Any]
    modes: Mapping[str, int]


def row(facts: Facts) -> dict[str, Any]:
    """Return the row of the result."""
    sizes, (began, ended) = facts.sizes, facts.steady
    counted = [each for kind in COUNTED for each in facts.seconds.get(kind, ())]
    dearest = max(found.total() for found in _lives(facts))
    quiet = audited.steady(facts.requests, began, ended).total()
    first = audited.first_child(facts.requests, facts.successor)
    return {
        "jobs": sizes.jobs,
        "waiting": sizes.waiting,
        "pods": sizes.pods,
        "nodes": sizes.nodes,
        "p99_seconds": round(percentile(counted, 99), 3),
        "requests_per_job": dearest,
        "steady_requests_per_minute": round(quiet / sizes.jobs / ((ended - began) / 60), 3),
        "rss_mib": round(facts.peak),
        **({"adapted": True} if sizes.adapted else {}),
        "failover_seconds": None if first is None else round(first - facts.expiry, 2),
        **{name: round(value, 4) for name, value in facts.planned.items()},
    }


def _lives(facts: Facts) -> list[Counter[str]]:
    """Return the requests of each life."""
    one_leader = (each for each in facts.requests if each.at < facts.led_until)
    return list(audited.of_lives(one_leader).values())


def details(facts: Facts) -> dict[str, Any]:
    """Return what is behind the row."""
    dearest = max(_lives(facts), key=lambda found: found.total())
    return {
        "plans_by_mode": dict(facts.modes),
        "latencies": {
            kind: {
                "counted": kind in COUNTED,
                "changes": len(found),
                "lost": facts.lost.get(kind, 0),
                **{f"p{part}": round(percentile(found, part), 3) for part in (50, 90, 99, 100)},
            }
            for kind, found in sorted(facts.seconds.items())
        },
        "requests_of_a_life": dict(dearest.most_common()),
        "requests_in_steady_state": dict(audited.steady(facts.requests, *facts.steady).most_common()),
        "requests_while_changed": dict(audited.steady(facts.requests, *facts.changed).most_common()),
        "requests_in_all": len(facts.requests),
        "replicas_mib": {name: round(peak) for name, peak in facts.peaks.items()},
        "processors": facts.processors,
    }
