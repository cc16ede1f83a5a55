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
from .shares import SharesBySpeed
from .stale import DynamicStale, Stale
from .synchronous import Synchronous

MODES: Mapping[str, Mode] = MappingProxyType(
    {
        "synchronous": Synchronous(),
        "balanced": Synchronous(SharesBySpeed()),
        "asp": Asynchronous(),
        "ssp": Stale(),
        "dssp": DynamicStale(),
        "dasp": DynamicAdaptive(),
    }
)

__all__ = [
    "MODES",
    "Asynchronous",
    "DynamicAdaptive",
    "DynamicStale",
    "Mode",
    "SharesBySpeed",
    "Stale",
    "Synchronous",
]
