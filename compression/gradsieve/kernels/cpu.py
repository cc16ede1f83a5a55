"""The rules' questions answered on CPUs by compiled loops: in the usual step with one pass over memory.

A pass uses as many threads as torch does (``torch.set_num_threads``) on tensors that are worth it; results do
not depend on their number.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradsieve.kernels import groups, numba_kernels
from gradsieve.kernels.lists import Lists, fill
from gradsieve.kernels.magnitude import SIGN_OFF, fixed_point_mean, magnitude_of
from gradsieve.kernels.parts import entry_spans, parallel_map, spans
from gradsieve.kernels.scratch import as_flat
from gradsieve.kernels.simd import LANES
from gradsieve.selection import Selection

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]


class CpuCandidates:
    """See :class:`gradsieve.accumulated.Candidates`.

    lists: each part's. A single part's are work space that the next pass writes over.
    magnitude_bits: they were listed because they reach it.
    """

    def __init__(
        self, lists: list[tuple[Indices, Floats]], magnitude_bits: int, *, lasting: bool = False
    ) -> None:
        self._indices, self._values = _joined(lists)
        self._magnitude_bits = magnitude_bits
        self._lasting = lasting or len(lists) > 1

    @property
    def count(self) -> int:
        """How many they are."""
        return self._indices.size

    def count_reaching(self, magnitude_bits: int) -> int:
        """Return how many of them reach ``magnitude_bits``."""
        if magnitude_bits <= self._magnitude_bits:
            return self.count
        return numba_kernels.count_reaching(self._values, magnitude_bits) if magnitude_bits <= SIGN_OFF else 0

    def lowest(self) -> int:
        """Return their smallest pattern, 0 if there are none."""
        return numba_kernels.lowest_bits(self._values) if self.count else 0

    def nth_largest(self, number: int) -> int:
        """Return the ``number``-th largest pattern."""
        bits = self._values.view(np.int32) & np.int32(SIGN_OFF)
        return int(np.partition(bits, self.count - number)[self.count - number])

    def select(self, magnitude_bits: int, at_most: int | None = None) -> Selection:
        """Return those that reach ``magnitude_bits``, of those at it only the first if they are too many."""
        kept, ties = self.count_reaching(magnitude_bits), self.count
        if at_most is not None and kept > at_most:
            kept, ties = at_most, at_most - self.count_reaching(magnitude_bits + 1)
        if kept == self.count and self._lasting:
            return _selection(self._indices, self._values, magnitude_bits)
        if kept == self.count:
            return _selection(self._indices.copy(), self._values.copy(), magnitude_bits)
        indices, values = np.empty(kept + 1, np.int64), np.empty(kept + 1, np.float32)
        numba_kernels.pick(self._indices, self._values, magnitude_bits, ties, indices, values)
        return _selection(indices[:kept], values[:kept], magnitude_bits)


class CpuSum:
    """See :class:`gradsieve.accumulated.Accumulated`: added up while answering the first question."""

    def __init__(self, accumulated: Tensor) -> None:
        self._tensor = accumulated
        self._out: Floats = accumulated.detach().numpy()
        self._terms: tuple[Floats, float, Floats] | None = None
        self._lists: list[Lists] = []
        self._taken: int | None = None  # what reached this pattern is listed, and 0 in the sum
        self._noted = range(0)  # the patterns that are answered for: the last by the lists alone

    @classmethod
    def of(cls, gradient: Tensor, scale: float, residual: Tensor, out: Tensor) -> CpuSum:
        """Return ``gradient * scale + residual``, to be made in ``out``, which is aligned as torch allocates.

        Gradients that are not contiguous fp32 are copied first: one pass more.
        """
        lazy = cls(out)
        lazy._terms = (as_flat(gradient.detach(), "gradient").numpy(), scale, residual.numpy())
        return lazy

    @property
    def elements(self) -> int:
        """N."""
        return self._out.size

    def tensor(self) -> Tensor:
        """Return a itself, adding it up if that has not happened."""
        if self._terms is not None:
            self._sum_and_list(self._terms, SIGN_OFF, SIGN_OFF, take=False)
        self._put_back()
        return self._tensor

    def reaching(self, magnitude_bits: int, margin: int = 0, *, likely: bool = False) -> CpuCandidates:
        """Return what reaches ``magnitude_bits``: from what an earlier pass noted, else by a pass."""
        if self._terms is not None:
            self._sum_and_list(self._terms, magnitude_bits, max(magnitude_bits - margin, 0), take=likely)
        elif magnitude_bits not in self._noted or not all(part.owner is self for part in self._lists):
            self._list(magnitude_bits)
        elif magnitude_bits < self._noted[-1]:
            return self._near_threshold(magnitude_bits)
        return CpuCandidates(
            [(part.indices[: part.compacted], part.values[: part.compacted]) for part in self._lists],
            magnitude_bits,
        )

    def subtract_sent(self, selection: Selection) -> None:
        """Set the selected elements to 0."""
        indices = selection.indices.numpy()
        if not self._were_taken(indices):
            self._put_back()
            parallel_map(
                lambda part: numba_kernels.clear(self._out, indices[part]), entry_spans(indices.size)
            )
        self._taken = None

    def mean_magnitude(self) -> float:
        """Return mean |a|."""
        numbers = self.tensor().numpy()
        parts = spans(self.elements)
        largest = max(parallel_map(lambda part: numba_kernels.largest_bits(numbers, *part), parts))
        return fixed_point_mean(
            largest,
            self.elements,
            lambda scale: sum(
                parallel_map(lambda part: numba_kernels.fixed_point_sum(numbers, *part, scale), parts)
            ),
        )

    def group_top_k(self, group_size: int, per_group: int, in_last: int) -> Selection:
        """Return the ``per_group`` largest of every group, adding up each group as it is looked at."""
        if group_size % LANES:
            self.tensor()
        summing = self._terms is not None
        gradient, scale, residual = self._terms or (self._out, 1.0, self._out)

        def list_groups(part: tuple[int, int]) -> tuple[Indices, Floats]:
            start, stop = part
            whole, rest = divmod(stop - start, group_size)
            kept = whole * per_group + (in_last if rest else 0)
            room = kept + group_size + LANES
            indices, values = np.empty(room, np.int64), np.empty(room, np.float32)
            keys, order = np.empty((2, group_size + LANES), np.int64)
            peaks = np.empty(group_size + LANES, np.int32)
            shape = (start, stop, group_size, per_group, in_last)
            lists = (peaks, keys, order, indices, values)
            groups.group_top_k(gradient, scale, residual, self._out, summing, *shape, *lists)
            return indices[:kept], values[:kept]

        indices, values = _joined(parallel_map(list_groups, spans(self.elements, group_size)))
        self._terms = None
        return _selection(indices, values, numba_kernels.lowest_bits(values) if indices.size else 0)

    def _sum_and_list(
        self, terms: tuple[Floats, float, Floats], upper: int, lower: int, *, take: bool
    ) -> None:
        gradient, scale, residual = terms

        def work(part: Lists) -> int:
            return numba_kernels.sum_and_list(
                *(gradient, scale, residual, self._out, part.start, part.stop, upper, lower, take),
                *(part.indices, part.values, part.near_threshold),
            )

        self._lists = fill(self, spans(self.elements), work)
        self._noted = range(lower, upper + 1)
        self._taken = upper if take else None
        self._terms = None

    def _require_lists(self) -> None:
        if not all(part.owner is self for part in self._lists):
            raise RuntimeError(
                "an accumulated gradient was asked after another one in the same thread; "
                "finish with one (subtract_sent) before asking the next"
            )

    def _were_taken(self, indices: Indices) -> bool:
        """Whether the pass that listed these, and no others, has already left nothing of them."""
        if self._taken is None or indices.size != sum(part.compacted for part in self._lists):
            return False
        ends = np.cumsum([part.compacted for part in self._lists])
        compacted = zip(self._lists, np.split(indices, ends[:-1]), strict=True)
        return all(np.array_equal(part.indices[: part.compacted], those) for part, those in compacted)

    def _put_back(self) -> None:
        """Undo what the adding pass took out of the sum."""
        if self._taken is not None:
            self._require_lists()
            for part in self._lists:
                numba_kernels.put(self._out, part.indices[: part.compacted], part.values[: part.compacted])
        self._taken = None

    def _list(self, magnitude_bits: int) -> None:
        def work(part: Lists) -> int:
            return numba_kernels.list_reaching(
                self._out, part.start, part.stop, magnitude_bits, part.indices, part.values
            )

        self._put_back()
        self._lists = fill(self, spans(self.elements), work)
        self._noted = range(magnitude_bits, magnitude_bits + 1)

    def _near_threshold(self, magnitude_bits: int) -> CpuCandidates:
        def merge(part: Lists) -> tuple[Indices, Floats]:
            groups = -(-(part.stop - part.start) // LANES)
            room = part.compacted + numba_kernels.count_near_threshold(part.near_threshold, groups) + 1
            indices, values = np.empty(room, np.int64), np.empty(room, np.float32)
            length = numba_kernels.list_near_threshold(
                *(
                    part.indices,
                    part.values,
                    part.compacted,
                    self._out,
                    part.start,
                    part.stop,
                    part.near_threshold,
                ),
                *(magnitude_bits, indices, values),
            )
            return indices[:length], values[:length]

        return CpuCandidates(parallel_map(merge, self._lists), magnitude_bits, lasting=True)


def _joined(parts: list[tuple[Indices, Floats]]) -> tuple[Indices, Floats]:
    """Return the parts' lists as one; a single part's as it is."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([indices for indices, _ in parts]), np.concatenate([values for _, values in parts])


def _selection(indices: Indices, values: Floats, magnitude_bits: int) -> Selection:
    return Selection(torch.from_numpy(indices), torch.from_numpy(values), magnitude_of(magnitude_bits))
