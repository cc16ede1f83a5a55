"""Sums that travel around a ring, block by block (method C, steps 2 to 4)."""

from __future__ import annotations

from torch import Tensor

from gradsieve.codec import ValueDtype
from gradsieve.sparse_gradient import SparseGradient
from gradsieve_hvd.transport.base import Transport

from .base import Coder, Exchanged, read, refused_block
from .blocks import Bounds, equal_bounds, most_per_block, put_together
from .ring_rounds import allgather_blocks, reduce_scatter

GROUP = 1024
"""Elements of a group of method C **(r)**: no group straddles two blocks."""


class RingExchange:
    """Reduce-scatter and all-gather of sparse blocks between neighbours.

    1. Cut the flat gradient into P blocks of equal size, a multiple of the group's (step 2). After group
       top-k each block has as many entries as any other.
    2. For s = 0 to P - 2 rank i sends block i - s, receives block i - s - 1, and adds its own entries
       (step 3). It then has the sum of block i + 1.
    3. For s = 0 to P - 2 it sends block i + 1 - s and receives block i - s, as it is (step 4).

    Supports grow as blocks travel. With ``most``, of each block the largest ``most / P`` entries are kept
    before it is sent, by which a rank sends at most 2 most (P - 1) / P entries (SparDL's and Ok-Topk's idea,
    beyond method C); what is dropped belongs to the residual of the rank that dropped it. A block travels
    dense when that is smaller: the codec sees to it.

    Args:
        value_dtype: number format of values on the wire.
        group: see step 1.
    """

    def __init__(self, value_dtype: ValueDtype = "float32", group: int = GROUP) -> None:
        self._coder, self._group = Coder(value_dtype), group

    def exchange(
        self, gradient: SparseGradient, transport: Transport, most: int | None = None, *, refuse: bool = False
    ) -> Exchanged:
        """Return the sum, each block added up in the order in which it travels; see `Exchange`."""
        gradient = gradient.cpu()
        bounds = equal_bounds(gradient.elements, transport.size, self._group)
        refuse = refuse or not gradient.finite
        travel = _Travel(gradient, bounds, transport, self._coder, most, refuse)
        block, message = reduce_scatter(transport, travel.first(), travel.added)
        messages = allgather_blocks(transport, block, message)
        return put_together(messages, bounds, travel.rejected)


class _Travel:
    """The reduce-scatter of one exchange. rejected: what this rank took away, by the blocks' positions."""

    def __init__(
        self,
        gradient: SparseGradient,
        bounds: Bounds,
        transport: Transport,
        coder: Coder,
        most: int | None,
        refuse: bool,
    ) -> None:
        self._gradient, self._bounds, self._transport = gradient, bounds, transport
        self._coder, self._most, self._refuse = coder, most, refuse
        self.rejected: list[tuple[int, SparseGradient]] = []

    def first(self) -> Tensor:
        """Return the message that this rank begins with."""
        return self._packed(self._transport.rank, self._own(self._transport.rank))

    def added(self, number: int, received: Tensor) -> Tensor:
        """Return the message with a block to which this rank's entries were added."""
        start, stop = self._bounds[number : number + 2]
        theirs, ours = read(received, stop - start), self._own(number)
        return self._packed(number, None if theirs is None or ours is None else theirs.plus(ours))

    def _own(self, number: int) -> SparseGradient | None:
        start, stop = self._bounds[number : number + 2]
        return None if self._refuse else self._gradient.block(start, stop)

    def _packed(self, number: int, block: SparseGradient | None) -> Tensor:
        """Return the message with a block, or with a refusal; a sum may have become infinite."""
        start, stop = self._bounds[number : number + 2]
        if block is None or not block.finite:
            return refused_block(stop - start)
        kept, dropped = block.keep_largest(most_per_block(self._most, self._transport.size, block))
        message, rounded = self._coder.encode(kept)
        self.rejected += [(start, dropped), (start, rounded)]
        return message
