"""A job's telemetry: rank 0's samples of the whole job, joined with what ranks tell of themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from gradsieve_hvd.control.fields import Refused
from gradsieve_hvd.control.history import History, Point
from gradsieve_hvd.control.rank_samples import RankSamples
from gradsieve_hvd.control.telemetry import RankTelemetry, Telemetry
from gradsieve_hvd.control.window import Window

_FORBIDDEN = 403


class Measurements:
    """What was measured of one job, from its first sample on.

    1. Rank 0 tells what the whole job does; every rank's own times come from the agent of its host. A host
       that names a rank of another one is refused, and nothing of its report is kept. What has the number
       that a rank had before the last renumbering is late, and ignored.
    2. A sample of rank 0's enters the window together with what all ranks have measured after the same step.
       If some have not told it when the next sample comes, their last word counts; so it does from the start
       where each rank steps at its own pace. Under another plan it does not count.
    3. Ranks that have told nothing lately are left out, and counted as silent.

    Args:
        clock: seconds; tells how old a sample is.

    Attributes:
        window: what the last samples come to.
        hosts: of the ranks that run, by rank.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.window = Window()
        self.hosts: tuple[str, ...] = ()
        self._hosts_before: tuple[str, ...] = ()
        self._history = History()
        self._ranks = RankSamples()
        self._last: Telemetry | None = None
        self._waiting: Telemetry | None = None
        self._taken_at = 0.0

    def begin(self, hosts: Sequence[str]) -> None:
        """Ranks start anew, on these hosts by rank."""
        self._last = None
        self.window.clear()
        self._ranks.clear()
        self.number(hosts)

    def number(self, hosts: Sequence[str]) -> None:
        """Running ranks have got these hosts, by rank; what they told before had other numbers.

        Numbers under which nobody has told anything are forgotten: an elastic job gets its first ones after
        it was started.
        """
        self._hosts_before = self.hosts if self._ranks.heard else ()
        self.hosts = tuple(hosts)
        self._ranks.clear()
        self._waiting = None

    @property
    def telemetry(self) -> Telemetry | None:
        """Rank 0's last sample of the current start, with the last word of all ranks that are not silent."""
        return None if self._last is None else replace(self._last, ranks=self._ranks.newest(self._clock()))

    @property
    def age(self) -> float | None:
        """Seconds since that sample came, whatever the clock of its host shows; None without one."""
        return None if self._last is None else self._clock() - self._taken_at

    def history_until_now(self) -> tuple[float, Sequence[Point]]:
        """Return the time, in seconds of the clock that points have, and those of the last hour."""
        now = self._clock()
        return now, self._history.points(now)

    def take_ranks(self, host: str, ranks: Sequence[RankTelemetry]) -> None:
        """Keep what ranks on ``host`` have measured.

        Raises:
            Refused: one of them is not there (403).
        """
        for rank in ranks:
            self._demand_own(host, rank)
        now = self._clock()
        self._ranks.take([rank for rank in ranks if self.hosts[rank.rank : rank.rank + 1] == (host,)], now)
        self._enter_if_complete(now)

    def take(self, host: str, telemetry: Telemetry) -> None:
        """Keep a sample that rank 0 reports from ``host``; it may name ranks of that host.

        Raises:
            Refused: it names a rank that is not there (403).
        """
        self.take_ranks(host, telemetry.ranks)
        now = self._clock()
        if self._waiting is not None:
            self._enter(self._waiting, now)
        self._last, self._taken_at, self._waiting = telemetry, now, telemetry
        self._history.take(telemetry, now)
        if telemetry.measured_step is None:
            self._enter(telemetry, now)
        else:
            self._enter_if_complete(now)

    def _demand_own(self, host: str, rank: RankTelemetry) -> None:
        there, before = (hosts[rank.rank : rank.rank + 1] for hosts in (self.hosts, self._hosts_before))
        if rank.host == host and (host,) in (there, before):
            return
        elsewhere = rank.host if rank.host != host else there[0] if there else ""
        where = f"rank {rank.rank} of {elsewhere}" if elsewhere else f"rank {rank.rank}, which there is not"
        raise Refused(
            f"telemetry from {host} names {where}: a host reports its own ranks only. Use the same gradsieve "
            "for workers as for their coordinator: in earlier versions rank 0 spoke for all",
            _FORBIDDEN,
        )

    def _enter_if_complete(self, now: float) -> None:
        waiting = self._waiting
        if waiting is None or waiting.measured_step is None:
            return
        ranks = self._ranks.of_step(len(self.hosts), waiting.measured_step, waiting.plan)
        if ranks is not None:
            self._waiting = None
            self.window.take(replace(waiting, ranks=ranks), now)

    def _enter(self, telemetry: Telemetry, now: float) -> None:
        """Let a sample into the window with every rank's last word, if all were under the same plan."""
        self._waiting = None
        ranks = self._ranks.newest(now)
        if not ranks:
            self.window.clear()
        elif all(rank.plan == telemetry.plan for rank in ranks):
            self.window.take(replace(telemetry, ranks=ranks), now, self._ranks.silent(self.hosts, now))
