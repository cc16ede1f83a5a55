"""Index codings: how strictly increasing positions become bytes.

Each coding computes its size before it writes anything, so that the smallest can be chosen without trying
them all.
Arrays: ``index_K`` int64 [K], strictly increasing, within [0, N).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from gradsieve.codec.header import IndexCoding, unexpected

Indices = npt.NDArray[np.int64]
_ESCAPE = 255
_GROUP = 1 << 16


class Coding(Protocol):
    """One way to write indices."""

    def size(self, indices: Indices, elements: int) -> int | None:
        """Return how many bytes ``write`` would return; None if these indices cannot be written so."""
        ...

    def write(self, indices: Indices, elements: int) -> bytes:
        """Return the index bytes."""
        ...

    def read(self, body: memoryview, count: int, elements: int) -> Indices:
        """Return the indices; memory is bounded by the bytes given. Raises PayloadError naming the field."""
        ...


class Delta:
    """The gap to the previous index, less one; 255 means "add 255 and go on".

    At densities of 0.5 % and above most gaps fit one byte.
    """

    def size(self, indices: Indices, elements: int) -> int | None:  # noqa: ARG002 - one signature for all codings
        """Return one byte per index and one per 255 skipped positions within a gap."""
        return indices.size + int((_gaps(indices) // _ESCAPE).sum())

    def write(self, indices: Indices, elements: int) -> bytes:  # noqa: ARG002
        """Return the gaps' bytes, all at once: escapes everywhere, then each gap's last byte in its place."""
        escapes, rest = np.divmod(_gaps(indices), _ESCAPE)
        last = np.cumsum(escapes + 1) - 1
        coded = np.full(int(last[-1]) + 1 if last.size else 0, _ESCAPE, np.uint8)
        coded[last] = rest
        return coded.tobytes()

    def read(self, body: memoryview, count: int, elements: int) -> Indices:
        """Return the indices: at a gap's last byte, the sum of all bytes so far plus the gaps before it."""
        coded = np.frombuffer(body, np.uint8)
        last = np.flatnonzero(coded != _ESCAPE)
        if last.size != count or (coded.size and coded[-1] == _ESCAPE):
            found = f"{last.size} complete gaps in {coded.size} bytes"
            raise unexpected("indices", found, f"{count} gaps and nothing else", "the payload is corrupted")
        indices = np.cumsum(coded, dtype=np.int64)[last] + np.arange(count)  # rising whatever the bytes are
        _require_within(indices, elements)
        return indices


class Group16:
    """Positions cut into groups of 65 536: how many are in each group, then each one's offset in its group.

    Counts and offsets have two bytes. A completely full group cannot be counted in them; such a selection is
    written in another way. Below a density of about 0.4 % this is smaller than the gaps. (One byte each, with
    groups of 256, would save at most N / 65 280 bytes over the gaps, so there is no such coding.)
    """

    def size(self, indices: Indices, elements: int) -> int | None:
        """Return two bytes per group and two per index; None if a group is full."""
        first, last = indices[: 1 - _GROUP], indices[_GROUP - 1 :]
        if bool(((last - first == _GROUP - 1) & (first % _GROUP == 0)).any()):
            return None
        return 2 * (_groups(elements) + indices.size)

    def write(self, indices: Indices, elements: int) -> bytes:
        """Return the counts' bytes, then the offsets'."""
        counts = np.bincount(indices // _GROUP, minlength=_groups(elements))
        return counts.astype("<u2").tobytes() + (indices % _GROUP).astype("<u2").tobytes()

    def read(self, body: memoryview, count: int, elements: int) -> Indices:
        """Return the indices: every group's start as often as it has entries, plus the offsets."""
        groups = _groups(elements)
        expected = 2 * (groups + count)
        if len(body) != expected:
            raise unexpected("indices", f"{len(body)} bytes", f"{expected} bytes", "the payload is corrupted")
        numbers = np.frombuffer(body, "<u2").astype(np.int64)
        counts, offsets = numbers[:groups], numbers[groups:]
        if int(counts.sum()) != count:
            raise unexpected("group counts", f"a sum of {counts.sum()}", count, "the payload is corrupted")
        indices = np.repeat(np.arange(groups) * _GROUP, counts) + offsets
        _require_increasing(indices)
        _require_within(indices, elements)
        return indices


SPARSE: dict[IndexCoding, Coding] = {
    IndexCoding.DELTA: Delta(),
    IndexCoding.GROUP16: Group16(),
}


def _gaps(indices: Indices) -> Indices:
    gaps = indices.copy()
    gaps[1:] -= indices[:-1] + 1
    return gaps


def _groups(elements: int) -> int:
    return -(-elements // _GROUP)


def _require_increasing(indices: Indices) -> None:
    if not bool((indices[1:] > indices[:-1]).all()):
        raise unexpected(
            "indices", "a repeated or falling position", "rising positions", "the payload is corrupted"
        )


def _require_within(indices: Indices, elements: int) -> None:
    """Of rising indices the last is the largest."""
    if indices.size and int(indices[-1]) >= elements:
        raise unexpected(
            "indices", int(indices[-1]), f"positions below {elements}", "the payload is corrupted"
        )
