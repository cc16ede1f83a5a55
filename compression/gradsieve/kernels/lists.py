"""Room for what a pass lists, kept from step to step so that no step pays for fresh pages.

Memory per calling thread: about one byte per element of its largest tensor, more after a step that listed
more than a sixteenth of the elements.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradsieve.kernels.parts import parallel_map
from gradsieve.kernels.simd import LANES

_ELEMENTS_PER_ENTRY = 16  # six times what a density of 1 % lists


@dataclass(slots=True)
class Lists:
    """One part's lists; see :mod:`gradsieve.kernels.numba_kernels`.

    owner: whose lists these are now. start, stop: the part.
    indices, values: the first ``compacted`` entries are listed; if that exceeds the room, the rest was only
    counted. near_threshold: one bit per element.
    """

    indices: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]
    near_threshold: npt.NDArray[np.uint32]
    owner: object = None
    start: int = 0
    stop: int = 0
    compacted: int = 0

    @property
    def complete(self) -> bool:
        """Whether all that was counted is listed."""
        return self.compacted <= self.indices.size - LANES

    def make_room(self, entries: int) -> None:
        """Have room for ``entries``; what is listed may be lost."""
        if self.indices.size < entries + LANES:
            self.indices = np.empty(entries + LANES, np.int64)
            self.values = np.empty(entries + LANES, np.float32)


class _OfThisThread(threading.local):
    def __init__(self) -> None:
        self.parts: list[Lists] = []


_scratch = _OfThisThread()


def fill(owner: object, spans: list[tuple[int, int]], work: Callable[[Lists], int]) -> list[Lists]:
    """Return this thread's lists for these parts after ``work`` has filled them, parts beside each other.

    ``work`` returns how many entries there are. If they did not fit it is asked again, with room for them.
    Valid until the next call in this thread, which shows in their ``owner``.
    """
    parts = [_with_room(number, *span) for number, span in enumerate(spans)]
    for part in parts:
        part.owner = owner
    for part, compacted in zip(parts, parallel_map(work, parts), strict=True):
        part.compacted = compacted
    if not all(part.complete for part in parts):
        for part in parts:
            part.make_room(part.compacted + part.compacted // 4)
        return fill(owner, spans, work)
    return parts


def _with_room(number: int, start: int, stop: int) -> Lists:
    parts = _scratch.parts
    if number == len(parts):
        parts.append(Lists(np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.uint32)))
    part = parts[number]
    part.start, part.stop = start, stop
    part.make_room((stop - start) // _ELEMENTS_PER_ENTRY + 4 * LANES)
    words = (stop - start) // LANES + 1
    if part.near_threshold.size < words:
        part.near_threshold = np.empty(words, np.uint32)
    return part
