"""For how long coordinators have not answered: pure, no network."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

_MOST_SECONDS = 10.0
"""A call without an answer counts for the time since the one before, and for no more than this: an operator
that stood still meanwhile has not listened."""

_LATELY_SECONDS = 30.0
_KEPT_SECONDS = 600.0


@dataclass
class _Silence:
    since: float
    last: float
    counted: float = 0.0


class SilenceTracker:
    """Counts the calls in a row that a coordinator has left without an answer.

    While several coordinators are silent and none has answered lately, it is the operator that is cut off,
    and nothing counts: jobs that train must not be restarted for that.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._silences: dict[str, _Silence] = {}
        self._heard = -math.inf

    def answered(self, uid: str) -> None:
        """The coordinator in the pod with ``uid`` has answered."""
        self._silences.pop(uid, None)
        self._heard = self._clock()

    def silent(self, uid: str) -> bool:
        """Whether it has left the last call without an answer."""
        return uid in self._silences

    def missed(self, uid: str, *, could_answer: bool) -> tuple[float, float]:
        """It has not; returns for how many seconds it could have and did not, and for how many it has not.

        The first begins anew when it could not answer, or when it answered what makes no sense.
        """
        now = self._clock()
        # Pods that are no more are not asked any more.
        kept = {who: each for who, each in self._silences.items() if now - each.last < _KEPT_SECONDS}
        self._silences = kept
        silence = kept.setdefault(uid, _Silence(now, now))
        if not could_answer:
            silence.counted = 0.0
        elif not self._cut_off(silence, now):
            silence.counted += min(now - silence.last, _MOST_SECONDS)
        silence.last = now
        return silence.counted, now - silence.since

    def _cut_off(self, silence: _Silence, now: float) -> bool:
        others = (each for each in self._silences.values() if each is not silence)
        others_silent = any(now - other.last < _LATELY_SECONDS for other in others)
        return others_silent and now - self._heard >= _LATELY_SECONDS
