"""What each rank has told lately of its own work, by way of its host's agent. No clock of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gradsieve_hvd.control.telemetry import RankTelemetry

SILENT_SECONDS: Final = 15.0
"""How old a rank's last word may be: seven times what it takes ranks with short steps to say something."""

_SILENT_STEPS: Final = 10
_LONGEST_SILENCE: Final = 600.0
"""Ranks speak every second step at most, however long these take; but what one claims has an end."""

_KEPT: Final = 2
"""Samples of a rank: rank 0's own may come a little later than the next one of somebody else."""


@dataclass
class RankSamples:
    """The last samples of every rank, by rank."""

    _of: dict[int, list[tuple[float, RankTelemetry]]] = field(default_factory=dict)

    def take(self, ranks: Iterable[RankTelemetry], now: float) -> None:
        """Keep what ranks have told."""
        for rank in ranks:
            kept = self._of.setdefault(rank.rank, [])
            kept.append((now, rank))
            del kept[:-_KEPT]

    def clear(self) -> None:
        """Forget everything: ranks start anew, or have got other numbers."""
        self._of.clear()

    @property
    def heard(self) -> bool:
        """Whether some rank has told anything."""
        return bool(self._of)

    def of_step(self, size: int, step: int, plan: int) -> tuple[RankTelemetry, ...] | None:
        """Return what all ranks have measured after ``step``; None as long as one has not told it.

        Args:
            size: how many ranks there are.
            step: as they count it.
            plan: that they followed.
        """
        if len(self._of) < size:
            return None
        found = [self._told(rank, step, plan) for rank in range(size)]
        return None if None in found else tuple(each for each in found if each is not None)

    def newest(self, now: float) -> tuple[RankTelemetry, ...]:
        """Return the last word of every rank that is not silent, by rank."""
        return tuple(kept[-1][1] for _, kept in sorted(self._of.items()) if not _is_silent(kept, now))

    def silent(self, hosts: Sequence[str], now: float) -> tuple[str, ...]:
        """Return the hosts of ranks that have told nothing lately, one for each such rank.

        Args:
            hosts: of all ranks, by rank.
            now: seconds.
        """
        return tuple(
            host for rank, host in enumerate(hosts) if rank not in self._of or _is_silent(self._of[rank], now)
        )

    def _told(self, rank: int, step: int, plan: int) -> RankTelemetry | None:
        for _, told in reversed(self._of.get(rank, [])):
            if (told.step, told.plan) == (step, plan):
                return told
        return None


def _is_silent(kept: Sequence[tuple[float, RankTelemetry]], now: float) -> bool:
    taken_at, rank = kept[-1]
    turn = math.fsum((rank.step_seconds, rank.wait_seconds or 0.0))
    return now - taken_at > max(SILENT_SECONDS, min(_SILENT_STEPS * turn, _LONGEST_SILENCE))
