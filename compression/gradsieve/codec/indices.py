"""Index codings: how strictly increasing positions become bytes.

The size of every coding is computed before anything is written, so that the smallest can be chosen without
trying them all. Arrays: ``index_K`` int64 [K], strictly increasing, within [0, N).

In-group offsets of one byte (groups of 256, a byte for each one's count) would save at most N / 65 280 bytes
over gap bytes, so there is no such coding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradsieve.codec import index_loops as loops
from gradsieve.codec import rice
from gradsieve.codec.faults import unexpected
from gradsieve.codec.header import Bytes, IndexCoding

Indices = npt.NDArray[np.int64]
_READERS: dict[IndexCoding, Callable[[Bytes, int, int, int, Indices], int]] = {
    IndexCoding.DELTA: loops.read_gap_bytes,
    IndexCoding.GROUP16: loops.read_groups,
    IndexCoding.RICE: loops.read_rice,
    IndexCoding.BITMAP: loops.read_bitmap,
}
_WRITERS: dict[IndexCoding, Callable[[Indices, int, Bytes, int], int]] = {
    IndexCoding.DELTA: loops.write_gap_bytes,
    IndexCoding.GROUP16: loops.write_groups,
    IndexCoding.BITMAP: loops.write_bitmap,
}
_FOUND = {
    rice.ENDS_EARLY: "too few bytes",
    rice.OUT_OF_RANGE: "a gap that leads beyond the tensor",
    loops.LEFT_OVER: "bytes left over",
    loops.FALLING: "a repeated or falling position",
    loops.BEYOND: "a position beyond the tensor",
    loops.MISCOUNTED: "counts that do not add up",
}


@dataclass(frozen=True, slots=True, eq=False)
class PlannedIndices:
    """Indices and the smallest way to write them: ``coding`` in ``size`` bytes.

    gaps (uint32 [K]) and parameters (uint8, one per block) are those of Golomb-Rice codes.
    """

    coding: IndexCoding
    size: int
    indices: Indices
    elements: int
    gaps: npt.NDArray[np.uint32]
    parameters: Bytes

    def write(self, out: Bytes, at: int) -> int:
        """Write the index bytes to ``out`` from byte ``at`` on and return the byte after."""
        if self.coding is IndexCoding.DENSE:
            return at
        if self.coding is IndexCoding.RICE:
            return rice.write(self.gaps, self.parameters, out, at)
        return _WRITERS[self.coding](self.indices, self.elements, out, at)


def plan_indices(indices: Indices, elements: int) -> PlannedIndices:
    """Choose the smallest coding; among equals the first. No indices are written where all elements are sent.

    Raises PayloadError if the indices are not strictly increasing within [0, N).
    """
    gaps = np.empty(indices.size, np.uint32)
    parameters = np.empty(-(-indices.size // rice.BLOCK), np.uint8)
    widest, escapes = loops.measure(indices, elements, gaps)
    if widest < 0:
        raise unexpected(
            "indices", _FOUND[widest], f"rising positions below {elements}", "fix the selector that made them"
        )
    if indices.size == elements:
        return no_indices(elements)
    sizes = {
        IndexCoding.DELTA: indices.size + escapes,
        IndexCoding.GROUP16: 2 * (-(-elements // loops.GROUP) + indices.size),
        IndexCoding.BITMAP: -(-elements // 8),
    }
    if widest <= rice.LARGEST:
        sizes[IndexCoding.RICE] = rice.plan(gaps, parameters)
    coding = min(sizes, key=lambda coding: (sizes[coding], coding))
    if coding is IndexCoding.GROUP16 and loops.fills_a_group(indices):  # whose count two bytes cannot tell
        del sizes[coding]
        coding = min(sizes, key=lambda coding: (sizes[coding], coding))
    return PlannedIndices(coding, sizes[coding], indices, elements, gaps, parameters)


def no_indices(elements: int) -> PlannedIndices:
    """Return what a payload of all values says about their positions: nothing."""
    nothing = np.empty(0, np.uint8)
    return PlannedIndices(
        IndexCoding.DENSE, 0, nothing.view(np.int64), elements, nothing.view(np.uint32), nothing
    )


def read_indices(coding: IndexCoding, data: Bytes, at: int, end: int, count: int, elements: int) -> Indices:
    """Return ``count`` indices from ``data[at:end]``, all of which they must use up; not for dense payloads.

    No more than 8 indices are claimed per byte, else no memory is taken. Raises PayloadError.
    """
    expected = f"{count} rising positions below {elements}"
    if count > 8 * (end - at):
        raise unexpected("indices", f"{end - at} bytes", expected, "the payload is corrupted")
    indices = np.empty(count, np.int64)
    fault = _READERS[coding](data, at, end, elements, indices)
    if fault:
        raise unexpected("indices", _FOUND[fault], expected, "the payload is corrupted")
    return indices
