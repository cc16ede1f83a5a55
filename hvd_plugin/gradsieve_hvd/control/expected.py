"""How long a step should take under other plans, by what ranks have measured.

::

    seconds of a step = computing, by the mode's rule  +  exchanging at its density / its local steps

The arithmetic of `gradsieve advise --slow` on measured numbers. The cost model of bytes needs torch, which
would make a coordinator of 40 MiB one of 800: rank 0 applies it (`other_densities`), and the rest is here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from gradsieve_hvd.control.telemetry import OtherDensity

_LONGEST: Final = 1e6
"""Seconds that are told: an absurd measurement ends here."""


def harmonic(times: Sequence[float]) -> float:
    """Return the time with which all would have the same rate in sum."""
    return len(times) / math.fsum(1 / each for each in times)


def computing_seconds(rows: Sequence[Sequence[float]], means: Sequence[float]) -> dict[str, float]:
    """Return by mode what a step takes without exchanging.

    1. Synchronous: of whichever rank is the slowest in each sample, on the average.
    2. Balanced: shares follow each rank's mean, and the slowest with its share is waited for. That finds the
       jitter of all ranks, which the slowest rank's work hides.
    3. Local: within some steps, delays even out: of the rank that is slowest on the average.
    4. Adaptive: every rank at its own rate, the fast ones at the median's.

    What the present mode takes was measured, and need not be expected.

    Args:
        rows: by sample and rank, seconds of a rank's own work with an equal share of the batch.
        means: of the same, by rank.
    """
    mean, median = harmonic(means), statistics.median(means)
    shares = [mean / own for own in means]
    found = {
        "Synchronous": statistics.fmean(max(row) for row in rows),
        "Balanced": statistics.fmean(
            max(work * share for work, share in zip(row, shares, strict=True)) for row in rows
        ),
        "Local": max(means),
        "Adaptive": harmonic([max(own, median) for own in means]),
    }
    return {mode: min(seconds, _LONGEST) for mode, seconds in found.items()}


def exchange_seconds(
    delay: float, link: Mapping[str, float] | None, others: Sequence[OtherDensity]
) -> list[dict[str, float]]:
    """Return ``factor`` to the present density and ``seconds`` of an exchange, by ascending factor.

    1. What more bytes take, or fewer save, by the link's measured bandwidth. Start-up times, and what ranks
       wait for each other, stay.
    2. Never less than in proportion to the bytes: measurements lag behind a link that changes.

    Empty if the link was not measured, or ranks do not tell other densities' bytes.

    Args:
        delay: seconds of an exchange now.
        link: as the window has it.
        others: by ascending factor, the present density among them.
    """
    now = next((each.received_bytes for each in others if each.factor == 1.0), 0.0)
    if link is None or not now:
        return []
    told = []
    for each in others:
        more = (each.received_bytes - now) / link["bytesPerSecond"]
        seconds = delay + more if more >= 0 else max(delay + more, delay * each.received_bytes / now)
        told.append({"factor": each.factor, "seconds": min(seconds, _LONGEST)})
    return told
