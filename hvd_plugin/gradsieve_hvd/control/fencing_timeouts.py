"""For how long ranks may still run on a host that has fallen silent: pure, no network."""

from __future__ import annotations

from gradsieve_hvd.control.contract import FORSAKEN_SECONDS, KILL_SECONDS, SILENCE_SECONDS
from gradsieve_hvd.control.messages import Incarnation

_MARGIN_SECONDS = 5.0
"""For an agent that gets to run late."""

LEASE_SECONDS = SILENCE_SECONDS + FORSAKEN_SECONDS + KILL_SECONDS + _MARGIN_SECONDS
"""After the last word from an agent, what ``mpirun`` has started there may run for so long.

An agent begins to end it ``SILENCE_SECONDS + FORSAKEN_SECONDS`` after it has *sent* the last ping that was
answered, and kills it `KILL_SECONDS` later. The coordinator heard that ping when it was sent or later.
"""


class FencingTimeouts:
    """The incarnations that may run ranks although nobody hears from them.

    A host whose connection was closed has no agent any more, and one that left has ended its ranks. But one
    that is silent may be well, behind a dead network: until its agent has noticed too, its ranks go on.
    """

    def __init__(self) -> None:
        self._until: dict[Incarnation, float] = {}

    def silent(self, incarnation: Incarnation, heard: float) -> None:
        """Take note that an incarnation that ran ranks does not answer, since its last word at ``heard``."""
        self._until[incarnation] = heard + LEASE_SECONDS

    def heard(self, incarnation: Incarnation) -> None:
        """Take note that it is back: it does as it is told."""
        self._until.pop(incarnation, None)

    def hosts(self, now: float) -> list[str]:
        """Return the hosts on which ranks may still run."""
        self._until = {who: until for who, until in self._until.items() if until > now}
        return sorted({who.host for who in self._until})

    def seconds(self, now: float) -> float:
        """Return after how many seconds no such rank can run any more; 0 for none."""
        return max([0.0, *(until - now for until in self._until.values())])
