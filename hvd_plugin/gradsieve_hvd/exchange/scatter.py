"""Every rank sums a block of its own: an uneven all-to-all, a selection, an allgather (Ok-Topk's idea)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from gradsieve.codec import ValueDtype
from gradsieve.sparse_gradient import SparseGradient
from gradsieve_hvd.transport.base import (
    Arriving,
    Transport,
    allgather,
    begin_allgather,
    begin_alltoall,
    posts_blocks,
)
from gradsieve_hvd.transport.rest import Rest

from .base import Coder, Exchanged, read, refused_block
from .blocks import Bounds, balanced_bounds, equal_bounds, most_per_block, put_together
from .phases import phase

_CELLS = 1024


class ScatterExchange:
    """Two direct hops instead of a ring's 2 (P - 1).

    1. Send each rank the entries of its block, and add up those that arrive, in the order of ranks.
    2. With ``most``, keep the largest ``most / P`` of the sum; what is dropped belongs to this rank's
       residual.
    3. Send the sum to all.

    With ``most = k`` a rank sends 2 k (P - 1) / P entries if blocks hold equally many. Entries do not lie
    evenly: at the first exchange and at every ``rebalance``-th one, all ranks count theirs in 1 024 cells,
    and the next bounds lie so that every block has as many.

    Args:
        value_dtype: number format of values on the wire.
        rebalance: how often bounds are moved, in exchanges; 0 for never.
    """

    def __init__(self, value_dtype: ValueDtype = "float32", rebalance: int = 64) -> None:
        self._coder, self._rebalance = Coder(value_dtype), rebalance
        self._exchanges = 0
        self._bounds: Bounds = ()

    def exchange(
        self, gradient: SparseGradient, transport: Transport, most: int | None = None, *, refuse: bool = False
    ) -> Exchanged:
        """Return the sum, each block added up in the order of ranks; see `Exchange`."""
        return self.begin(gradient, transport, most, refuse=refuse)()

    def begin(
        self, gradient: SparseGradient, transport: Transport, most: int | None = None, *, refuse: bool = False
    ) -> Callable[[], Exchanged]:
        """Send all blocks, unless entries are to be counted first, and return what does the rest."""
        gradient = gradient.cpu()
        refuse = refuse or not gradient.finite
        if not self._counts(gradient.elements, transport.size):
            return self._begin_blocks(gradient, transport, most, refuse=refuse)

        def finish() -> Exchanged:
            self._move_bounds(gradient, transport)
            return self._begin_blocks(gradient, transport, most, refuse=refuse)()

        return finish

    def _begin_blocks(
        self, gradient: SparseGradient, transport: Transport, most: int | None, *, refuse: bool
    ) -> Callable[[], Exchanged]:
        bounds = self._bounds
        spans = list(itertools.pairwise(bounds))
        start, stop = spans[transport.rank]
        messages, rejected = [], []
        for first, end in spans:
            if refuse:
                messages.append(refused_block(end - first))
                continue
            message, rounded = self._coder.encode(gradient.block(first, end))
            messages.append(message)
            rejected.append((first, rounded))
        with phase("all-to-all of blocks"):
            arriving = begin_alltoall(transport, messages)

        def add_up() -> Arriving:
            with phase("all-to-all of blocks"):
                arrived = list(arriving())
            block = self._summed(arrived, stop - start)
            if block is None:
                rejected.clear()
                message = refused_block(stop - start)
            else:
                kept, dropped = block.keep_largest(most_per_block(most, transport.size, block))
                message, rounded = self._coder.encode(kept)
                rejected.extend([(start, dropped), (start, rounded)])
            with phase("all-gather of sums"):
                return begin_allgather(transport, message)

        def finish(sums: Arriving) -> Exchanged:
            with phase("all-gather of sums"):
                messages = list(sums())
            return put_together(messages, bounds, rejected)

        rest = Rest(add_up, finish)
        return rest if posts_blocks(transport) else rest.__call__

    def _summed(self, messages: list[torch.Tensor], elements: int) -> SparseGradient | None:
        """Return the sum of what arrived, None if a rank refused or the sum is not finite."""
        blocks = [read(message, elements) for message in messages]
        total = SparseGradient.nothing(elements)
        for block in blocks:
            if block is None:
                return None
            total = total.plus(block)
        return total if total.finite else None

    def _counts(self, elements: int, ranks: int) -> bool:
        """Return whether the next exchange begins with counting entries; the same on all ranks."""
        if not self._bounds or self._bounds[-1] != elements or len(self._bounds) != ranks + 1:
            self._bounds, self._exchanges = equal_bounds(elements, ranks), 0
        due = bool(self._rebalance) and ranks > 1 and self._exchanges % self._rebalance == 0
        self._exchanges += 1
        return due

    def _move_bounds(self, gradient: SparseGradient, transport: Transport) -> None:
        cell = -(-gradient.elements // _CELLS) or 1
        mine = torch.bincount(gradient.indices // cell, minlength=_CELLS).to(torch.int32)
        with phase("counting entries"):
            counts = [each.view(torch.int32) for each in allgather(transport, mine.view(torch.uint8))]
        self._bounds = balanced_bounds(torch.stack(counts).sum(0), cell, gradient.elements, transport.size)
