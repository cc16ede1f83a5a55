"""The rules' questions answered on GPUs: in the usual step one pass over memory and one wait for the device.

Where the host waits, and why:

- ``reaching``: for the number of entries. It sizes the payload, and the rules decide by it. Nothing else of
  the usual step of `laplace` waits here.
- Candidates, when a rule refines: see :mod:`gradsieve.kernels.gpu.candidates`.
- ``mean_magnitude``: for its two numbers, where there is no last threshold.
- ``group_top_k``: not for its entries, whose number is known before; for the threshold, which a selection
  holds as a number.

Memory: room to note entries, 0.4 bytes per element, from torch's caching allocator while an accumulated
gradient is asked, and back with ``subtract_sent``. So there is one such piece, of the largest tensor's size,
not one per tensor, and only the first steps take memory from the device.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradsieve.kernels.gpu import groups, passes
from gradsieve.kernels.gpu.candidates import GpuCandidates
from gradsieve.kernels.gpu.passes import BLOCK, OPTIONS, ROOM
from gradsieve.kernels.magnitude import SIGN_OFF, fixed_point_mean, magnitude_of
from gradsieve.kernels.reference import ReferenceSum
from gradsieve.selection import Selection


@dataclass(frozen=True, slots=True, eq=False)
class _Notes:
    """What a pass noted of every block: all that reaches ``lower``; see :func:`passes.sum_and_note`."""

    lower: int
    offsets: Tensor
    values: Tensor
    noted: Tensor
    reached: Tensor


class GpuSum:
    """See :class:`gradsieve.accumulated.Accumulated`: added up while answering the first question."""

    def __init__(self, accumulated: Tensor) -> None:
        self._out = accumulated.detach()
        self._terms: tuple[Tensor, float, Tensor] | None = None
        self._notes: _Notes | None = None
        self._taken: tuple[Tensor, Tensor] | None = None  # places and values that are 0 in the sum by now
        self._blocks = -(-self.elements // BLOCK)

    @classmethod
    def of(cls, gradient: Tensor, scale: float, residual: Tensor, out: Tensor) -> GpuSum:
        """Return ``gradient * scale + residual``, to be made in ``out``.

        Gradients that are not contiguous are copied into ``out`` first: one pass more, and no more memory.
        """
        gradient = gradient.detach()
        if not gradient.is_contiguous():
            gradient = out.view(gradient.shape).copy_(gradient)
        lazy = cls(out)
        lazy._terms = (gradient.view(-1), float(scale), residual)
        return lazy

    @property
    def elements(self) -> int:
        """N."""
        return self._out.numel()

    def tensor(self) -> Tensor:
        """Return a itself, adding it up if that has not happened."""
        if self._terms is not None:
            self._sum_and_note(SIGN_OFF, SIGN_OFF, take=False)
        self._put_back()
        return self._out

    def reaching(self, magnitude_bits: int, margin: int = 0, *, likely: bool = False) -> GpuCandidates:
        """Return what reaches ``magnitude_bits``: from what an earlier pass noted, else by a pass."""
        take = likely and self._terms is not None
        self._put_back()
        if self._terms is not None:
            notes = self._sum_and_note(magnitude_bits, max(magnitude_bits - margin, 0), take=take)
        elif self._notes is not None and magnitude_bits >= self._notes.lower:
            notes = self._notes
            arguments = (self._out, self.elements, magnitude_bits, notes.values, notes.noted, notes.reached)
            self._launch(passes.count_reaching, self._blocks, *arguments, BLOCK=BLOCK, ROOM=ROOM)
        else:
            notes = self._sum_and_note(magnitude_bits, magnitude_bits, take=False)
        indices, values = self._list(notes, magnitude_bits, take=take)
        if take:
            self._taken = indices, values
        return GpuCandidates(indices, values, magnitude_bits)

    def subtract_sent(self, selection: Selection) -> None:
        """Set the selected elements to 0."""
        self._notes = None
        if self._taken is not None and self._taken[0] is selection.indices:
            self._taken = None
            return
        self._put_back()
        self._out.index_fill_(0, selection.indices, 0.0)

    def mean_magnitude(self) -> float:
        """Return mean |a|, in two passes."""
        numbers = self.tensor()
        largest = numbers.new_empty(self._blocks, dtype=torch.int32)
        self._launch(passes.largest_bits, self._blocks, numbers, self.elements, largest, BLOCK=BLOCK)

        def total(scale: float) -> int:
            sums = numbers.new_empty(self._blocks, dtype=torch.int64)
            exponent = math.frexp(scale)[1] - 1
            arguments = (numbers, self.elements, exponent, sums)
            self._launch(passes.fixed_point_sums, self._blocks, *arguments, BLOCK=BLOCK)
            return int(sums.sum())

        return fixed_point_mean(int(largest.max()), self.elements, total)

    def group_top_k(self, group_size: int, per_group: int, in_last: int) -> Selection:
        """Return the ``per_group`` largest of every group, adding up each group as it is looked at.

        Groups of more than 8 192 elements are sorted by the reference.
        """
        if group_size > groups.LARGEST:
            return ReferenceSum(self.tensor()).group_top_k(group_size, per_group, in_last)
        self._put_back()
        whole, rest = divmod(self.elements, group_size)
        kept = whole * per_group + (in_last if rest else 0)
        rows, columns, warps = groups.tile_of(group_size)
        programs = -(-(whole + bool(rest)) // rows)
        indices, values = self._room(kept)
        lowest = indices.new_empty(programs, dtype=torch.int32)
        gradient, scale, residual = self._terms or (self._out, 1.0, self._out)
        self._launch(
            groups.group_top_k,
            programs,
            *(gradient, scale, residual, self._out, self.elements, per_group, in_last),
            *(indices, values, lowest),
            SUMMING=self._terms is not None,
            SIZE=group_size,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=warps,
        )
        self._terms = None
        return Selection(indices, values, magnitude_of(int(lowest.min()) if programs else 0))

    def _sum_and_note(self, upper: int, lower: int, *, take: bool) -> _Notes:
        """Add up, if that has not happened, and note what reaches ``lower``."""
        notes = _Notes(
            lower,
            self._out.new_empty(self._blocks * ROOM, dtype=torch.int16),
            self._out.new_empty(self._blocks * ROOM),
            *self._out.new_empty(2, self._blocks, dtype=torch.int32),
        )
        gradient, scale, residual = self._terms or (self._out, 1.0, self._out)
        self._launch(
            passes.sum_and_note,
            self._blocks,
            *(gradient, scale, residual, self._out, self.elements, upper, lower),
            *(notes.offsets, notes.values, notes.noted, notes.reached),
            SUMMING=self._terms is not None,
            TAKE=take,
            BLOCK=BLOCK,
            ROOM=ROOM,
        )
        self._terms, self._notes = None, notes
        return notes

    def _list(self, notes: _Notes, magnitude_bits: int, *, take: bool) -> tuple[Tensor, Tensor]:
        """Return places and values of what reaches ``magnitude_bits``, which ``notes.reached`` counts."""
        ends = notes.reached.cumsum(0)
        indices, values = self._room(int(ends[-1]) if self._blocks else 0)
        self._launch(
            passes.list_reaching,
            self._blocks,
            *(
                self._out,
                self.elements,
                magnitude_bits,
                notes.offsets,
                notes.values,
                notes.noted,
                notes.reached,
            ),
            *(ends, indices, values),
            TAKE=take,
            BLOCK=BLOCK,
            ROOM=ROOM,
        )
        return indices, values

    def _put_back(self) -> None:
        """Undo what was taken out of the sum."""
        if self._taken is not None:
            self._out.index_copy_(0, *self._taken)
        self._taken = None

    def _room(self, entries: int) -> tuple[Tensor, Tensor]:
        return self._out.new_empty(entries, dtype=torch.int64), self._out.new_empty(entries)

    def _launch(self, kernel: Any, programs: int, *arguments: Tensor | float, **constants: int) -> None:
        """Start a kernel on the tensor's device, which need not be the current one."""
        here = torch.cuda.device(self._out.device) if self._out.is_cuda else nullcontext()
        if programs:
            with here:
                kernel[(programs,)](*arguments, **constants, **OPTIONS)
