"""Nodes that have refused pods, for reasons that the planner does not know: remembered for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

FIRST_SECONDS, LONGEST_SECONDS = 10.0, 300.0
"""For how long a node is left out after it has refused pods for the first time, and at most."""

KEPT_SECONDS = 3600.0
"""A refusal is forgotten so long after it; until then nodes that have refused nothing come first."""

_LONGEST_REASON = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """What equal pods were refused.

    left_out: node -> why; no pod is placed there now.
    doubted: nodes whose time is over; they are tried again where there is no other place.
    """

    left_out: Mapping[str, str] = field(default_factory=dict)
    doubted: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Refusal:
    why: str
    pause: float
    until: float
    forgotten: float


class Refusals:
    """Remembers which nodes have refused which pods.

    It lives as long as the process: a new operator tries each node once again.

    1. A node that refuses pods of a group is left out for them for 10 s, and each time it refuses again after
       that for twice as long, up to five minutes.
    2. After an hour without a further refusal it counts as any other.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refusals: dict[tuple[str, str, str], _Refusal] = {}

    def add(self, job: str, group: str, node: str, why: str) -> None:
        """Take note that a node has refused a pod.

        Args:
            job: what tells jobs apart, and what a job was before its author changed it.
            group: of the pod's workers, or the coordinator.
            node: that was to take it.
            why: in the scheduler's or the node's words.
        """
        now, key = self._clock(), (job, group, node)
        self._refusals = {key: each for key, each in self._refusals.items() if now < each.forgotten}
        known = self._refusals.get(key)
        # Several pods of one placement are refused together: that is one refusal.
        if known is None or now >= known.until:
            pause = FIRST_SECONDS if known is None else min(2 * known.pause, LONGEST_SECONDS)
            self._refusals[key] = _Refusal(why[:_LONGEST_REASON], pause, now + pause, now + KEPT_SECONDS)

    def of(self, job: str) -> dict[str, Refused]:
        """Return what pods of a job were refused: group -> nodes."""
        now = self._clock()
        left_out: dict[str, dict[str, str]] = {}
        doubted: dict[str, set[str]] = {}
        for (whose, group, node), each in self._refusals.items():
            if whose == job and now < each.until:
                left_out.setdefault(group, {})[node] = each.why
            elif whose == job and now < each.forgotten:
                doubted.setdefault(group, set()).add(node)
        return {
            group: Refused(left_out=left_out.get(group, {}), doubted=frozenset(doubted.get(group, ())))
            for group in (*left_out, *doubted)
        }
