"""The parallel modes: each says when pushes become a version and who computes next.

==============  ==============================================================  =========================
mode            a version is made of                                            a worker waits
==============  ==============================================================  =========================
`synchronous`   one push of every worker                                        for all others (BSP)
`balanced`      the same, with batches by measured speed                        hardly (LB-BSP)
`asp`           one push                                                        never
`ssp`           one push                                                        3 iterations ahead at most
`dssp`          one push                                                        3 to 15 iterations ahead
`dasp`          what those who are in step have pushed, and what came late      up to half a round
==============  ==============================================================  =========================
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gradsieve_hvd.server.node_table import Mode

from .asynchronous import Asynchronous
from .dasp import DynamicAdaptive
from .shares import USUAL_ANNOUNCEMENTS, AnnouncedShares, BalancedShares, SharesBySpeed, announces
from .stale import DynamicStale, Stale
from .synchronous import Synchronous

MODES: Mapping[str, Mode] = MappingProxyType(
    {
        "synchronous": Synchronous(),
        "balanced": Synchronous(AnnouncedShares(BalancedShares(), USUAL_ANNOUNCEMENTS)),
        "asp": Asynchronous(),
        "ssp": Stale(),
        "dssp": DynamicStale(),
        "dasp": DynamicAdaptive(),
    }
)

BOUNDED = ("ssp", "dssp")
"""Modes in which a worker leads the slowest by so many iterations at most."""


DASP_WITH_SHARES = DynamicAdaptive(shares=SharesBySpeed(least_iterations=7))
"""`dasp` where batches may have any size.

The first steps of real ranks say little about speeds: after one of each a rank like the others was given
the largest batch that there is (4 ranks by quota). Waiting for seven costs little: simulated, 16 seeds, 145
instead of 139 with 4 workers (slow4), 67 instead of 69 and 61 instead of 60 with 8 (slow4, mixed).
"""


def policy(mode: str, staleness_bound: int | None = None, *, equal_batches: bool = False) -> Mode:
    """Return the policy of a mode, one of `MODES`; see `Stale`, `DynamicStale` and `DynamicAdaptive`.

    staleness_bound: by how many iterations a worker may lead the slowest in one of `BOUNDED`, 3 in "ssp" and
    15 in "dssp" unless it is given. In "dssp" leads beyond 3 are extra iterations. equal_batches: whether
    "dasp" leaves shares as they are.
    """
    if mode == "dasp" and not equal_batches:
        return DASP_WITH_SHARES
    if staleness_bound is None or mode not in BOUNDED:
        return MODES[mode]
    if mode == "ssp":
        return Stale(staleness_bound)
    usual = min(staleness_bound, DynamicStale().bound)
    return DynamicStale(bound=usual, most_extra=staleness_bound - usual)


__all__ = [
    "BOUNDED",
    "DASP_WITH_SHARES",
    "MODES",
    "USUAL_ANNOUNCEMENTS",
    "Asynchronous",
    "BalancedShares",
    "DynamicAdaptive",
    "DynamicStale",
    "Mode",
    "SharesBySpeed",
    "Stale",
    "Synchronous",
    "announces",
    "policy",
]
