"""A list of elements on a GPU.

Where the host waits for the device: of a short list, when first asked for ``count_reaching`` or ``lowest``,
for the values of all, from which later questions are answered, so that a bisection waits once; of a long one
for each answer, which takes less than to move the list and count there. And in ``nth_largest``.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradsieve.kernels import numba_kernels
from gradsieve.kernels.magnitude import SIGN_OFF, magnitude_of
from gradsieve.selection import Selection

SHORT = 1 << 15
"""Entries of a list that is looked at on the host, at most."""


class GpuCandidates:
    """See :class:`gradsieve.accumulated.Candidates`: all those that reach ``magnitude_bits``."""

    def __init__(self, indices: Tensor, values: Tensor, magnitude_bits: int) -> None:
        self._indices = indices
        self._values = values
        self._magnitude_bits = magnitude_bits

    @property
    def count(self) -> int:
        """How many they are."""
        return self._indices.numel()

    def count_reaching(self, magnitude_bits: int) -> int:
        """Return how many of them reach ``magnitude_bits``; waits for the device."""
        if magnitude_bits <= self._magnitude_bits:
            return self.count
        if magnitude_bits > SIGN_OFF:
            return 0
        if self.count > SHORT:
            return int((self._bits >= magnitude_bits).sum())
        return numba_kernels.count_reaching(self._on_host, magnitude_bits)

    def lowest(self) -> int:
        """Return their smallest pattern, 0 if there are none; waits for the device."""
        if self.count > SHORT:
            return int(self._bits.min())
        return numba_kernels.lowest_bits(self._on_host) if self.count else 0

    def nth_largest(self, number: int) -> int:
        """Return the ``number``-th largest pattern; waits for the device.

        torch's selection runs in one block of threads: of 1.3 million it takes 35 times a sort.
        """
        place = self.count - number
        if self.count > SHORT:
            return int(self._bits.sort().values[place])
        return int(torch.kthvalue(self._bits, place + 1).values)

    def select(self, magnitude_bits: int, at_most: int | None = None) -> Selection:
        """Return those that reach ``magnitude_bits``, of those at it only the first if they are too many.

        Waits for nothing: how many they are is known by then.
        """
        kept, ties = self.count_reaching(magnitude_bits), self.count
        if at_most is not None and kept > at_most:
            kept, ties = at_most, at_most - self.count_reaching(magnitude_bits + 1)
        if kept == self.count:
            return Selection(self._indices, self._values, magnitude_of(magnitude_bits))
        tied = self._bits == magnitude_bits
        keep = (self._bits > magnitude_bits) | (tied & (tied.cumsum(0) <= ties))
        return Selection(
            _compacted(self._indices, keep, kept),
            _compacted(self._values, keep, kept),
            magnitude_of(magnitude_bits),
        )

    @cached_property
    def _bits(self) -> Tensor:
        return self._values.view(torch.int32) & SIGN_OFF

    @cached_property
    def _on_host(self) -> npt.NDArray[np.float32]:
        values: npt.NDArray[np.float32] = self._values.cpu().numpy()
        return values


def _compacted(entries: Tensor, keep: Tensor, kept: int) -> Tensor:
    """Return ``entries[keep]``, of which there are ``kept``: known, so that nobody waits for a count."""
    slots = torch.where(keep, keep.cumsum(0) - 1, kept)  # all others share a slot that is cut off
    return entries.new_empty(kept + 1).scatter_(0, slots, entries)[:kept]
