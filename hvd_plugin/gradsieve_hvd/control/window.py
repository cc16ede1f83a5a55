"""What ranks have reported lately, summed up: what steps take, who is slow, and how much of it is waiting."""

from __future__ import annotations

import heapq
import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradsieve_hvd.control.expected import computing_seconds, exchange_seconds, harmonic
from gradsieve_hvd.control.telemetry import RankTelemetry, Telemetry

MOST_SAMPLES = 32
"""About a minute of them. The window begins again with each plan and each start of ranks."""

MOST_SLOWEST = 16
"""Ranks that are told one by one; of 16 384 at most, so that the answer to the operator stays small."""

MOST_HOSTS = 128
MOST_SILENT_HOSTS = 16

_LEAST_SECONDS = 1e-9
"""A rank that claims to work for no time at all must not divide by it."""


@dataclass(frozen=True, slots=True)
class _Sample:
    taken_at: float
    step: float
    wait: float
    work: tuple[float, ...]
    waits: tuple[float, ...]
    throttled: tuple[float, ...]


@dataclass
class Window:
    """The last samples of one plan and one set of ranks.

    Telemetry comes from the job's own pods: nothing in it is believed to be more than a number.
    """

    _samples: deque[_Sample] = field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))
    _plan: int = 0
    _hosts: tuple[str, ...] = ()
    _ranks: tuple[int, ...] = ()
    _of: tuple[object, ...] = ()
    _silent: tuple[str, ...] = ()
    _last: Telemetry | None = None

    def take(self, telemetry: Telemetry, now: float, silent: tuple[str, ...] = ()) -> None:
        """Add a sample; of another plan, start or set of ranks than the last one's it begins anew.

        Args:
            telemetry: as rank 0 reports it, with what ranks tell of themselves.
            now: seconds of the coordinator's own clock.
            silent: hosts of the ranks that do not, one for each.
        """
        plan, self._silent = telemetry.plan, silent
        ranks = tuple(rank.rank for rank in telemetry.ranks)
        hosts = tuple(rank.host for rank in telemetry.ranks)
        of = (plan, telemetry.generation, ranks, hosts)
        if of != self._of:
            self._samples.clear()
            self._plan, self._ranks, self._hosts, self._of = plan, ranks, hosts, of
        self._samples.append(
            _Sample(
                now,
                telemetry.numbers.get("stepSeconds", 0.0),
                telemetry.numbers.get("waitSeconds", 0.0),
                tuple(max(_work(rank), _LEAST_SECONDS) for rank in telemetry.ranks),
                tuple(rank.wait_seconds or 0.0 for rank in telemetry.ranks),
                tuple(rank.throttled_share or 0.0 for rank in telemetry.ranks),
            )
        )
        self._last = replace(telemetry, ranks=())

    def clear(self) -> None:
        """Forget everything: ranks start anew."""
        self._samples.clear()

    def to_json(self) -> dict[str, Any] | None:
        """Return what the operator decides by, see docs/telemetry.md; None without a sample that names ranks.

        1. A rank's own work and waiting are means over the samples; work of a rank with another share of the
           batch is what an equal share would take it.
        2. Of the ranks' work: the harmonic mean, with which all would have the same rate in sum; the same
           with nobody faster than the median rank; that of the rank that is slowest on the average; and the
           mean of the slowest of each sample, whoever that was.
        3. What even the rank that waits least waits for, in each sample, is the exchange's.
        4. The link is the last one that ranks tell: they say medians themselves, and it may have changed
           under the same plan. With it, and the ranks' work, what a step should take under other plans.
        """
        if not self._hosts or not self._samples or self._last is None:
            return None
        samples = list(self._samples)
        work = _means([sample.work for sample in samples])
        waits = _means([sample.waits for sample in samples])
        median = statistics.median(work)
        steps = [sample.step for sample in samples]
        slowest = max(range(len(work)), key=work.__getitem__)
        delay = statistics.fmean(min(sample.waits) for sample in samples)
        link = _link(self._last)
        return {
            "planGeneration": self._plan,
            "samples": len(samples),
            "seconds": samples[-1].taken_at - samples[0].taken_at,
            "ranks": len(work),
            "silentRanks": len(self._silent),
            "silentHosts": sorted(set(self._silent))[:MOST_SILENT_HOSTS],
            "stepSeconds": statistics.fmean(steps),
            "stepDeviation": statistics.pstdev(steps),
            "recentStepSeconds": statistics.median(steps[len(steps) // 2 :]),
            "waitSeconds": statistics.fmean(sample.wait for sample in samples),
            "delaySeconds": delay,
            "work": {
                "harmonic": harmonic(work),
                "paced": harmonic([max(each, median) for each in work]),
                "slowest": work[slowest],
                "peak": statistics.fmean(max(sample.work) for sample in samples),
            },
            "link": link,
            "expected": {
                "computingSeconds": computing_seconds([sample.work for sample in samples], work),
                "exchange": exchange_seconds(delay, link, self._last.others),
            },
            "slowestHost": self._hosts[slowest],
            "slowestThrottledShare": self._throttled(slowest),
            "slowestRanks": self._slowest_ranks(work, waits),
            "hosts": self._by_host(work, waits),
        }

    def _slowest_ranks(self, work: Sequence[float], waits: Sequence[float]) -> list[dict[str, Any]]:
        chosen = heapq.nlargest(MOST_SLOWEST, range(len(work)), key=work.__getitem__)
        return [
            {"rank": self._ranks[place], "host": self._hosts[place], **self._times(place, work, waits)}
            for place in chosen
        ]

    def _times(self, place: int, work: Sequence[float], waits: Sequence[float]) -> dict[str, float]:
        """Return one rank's means, and what nine of ten of its samples are below."""
        own = sorted(sample.work[place] for sample in self._samples)
        return {
            "workSeconds": round(work[place], 6),
            "workSeconds90": round(own[math.ceil(0.9 * len(own)) - 1], 6),
            "waitSeconds": round(waits[place], 6),
            "throttledShare": self._throttled(place),
        }

    def _throttled(self, place: int) -> float:
        return round(statistics.fmean(sample.throttled[place] for sample in self._samples), 3)

    def _by_host(self, work: Sequence[float], waits: Sequence[float]) -> list[dict[str, Any]]:
        """Return the slowest hosts, each with the means of its ranks."""
        places: dict[str, list[int]] = {}
        for place, host in enumerate(self._hosts):
            places.setdefault(host, []).append(place)
        means = {host: statistics.fmean(work[place] for place in own) for host, own in places.items()}
        return [
            {
                "host": host,
                "workSeconds": round(means[host], 6),
                "waitSeconds": round(statistics.fmean(waits[place] for place in places[host]), 6),
            }
            for host in heapq.nlargest(MOST_HOSTS, means, key=means.__getitem__)
        ]


def _work(rank: RankTelemetry) -> float:
    return rank.step_seconds if rank.equal_share_seconds is None else rank.equal_share_seconds


def _link(telemetry: Telemetry) -> dict[str, float] | None:
    """Return what ranks say of their link, with what a step receives over it; None for nothing."""
    names = ("receivedBytesPerStep", "startUpSeconds", "bytesPerSecond")
    found = {name: telemetry.numbers[name] for name in names if name in telemetry.numbers}
    return found if len(found) == len(names) and found["bytesPerSecond"] else None


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]
