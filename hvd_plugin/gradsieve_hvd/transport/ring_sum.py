"""A dense sum around a ring, in segments, begun before anyone waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

_SEGMENT_ELEMENTS = 96 * 1024
"""Of 384 kB: at 100 Mbit/s a sum of 24 MB over four ranks took 3.17 s, in one segment per block 3.39 s."""

AT_ONCE_ELEMENTS = 8 * 1024
"""Up to so many every rank sends to all others: the 32 kB take less time than the rounds of a ring."""

Wait = Callable[[], None]


class Neighbours(Protocol):
    """Messages to the next rank of a ring and from the one before, which arrive in the order of sending."""

    def send(self, values: Tensor) -> Wait:
        """Begin to send (fp32 [N], CPU); what is returned waits until its memory may be written again."""
        ...

    def receive(self, into: Tensor) -> Wait:
        """Begin to receive into ``into`` (fp32 [N], CPU); what is returned waits until it is there."""
        ...


class RingSum:
    """A sum over all ranks: 2 (P - 1) / P N values sent by each, the least there can be.

    1. Cut the values into P equal blocks, each into segments. Send the own block; the rest waits for others.
    2. In round s = 0 to 2 P - 3 rank i receives block i - s - 1, and sends it on in round s + 1. In the first
       P - 1 rounds it adds its own values before; then blocks are whole sums and replace its values.
       A segment leaves as soon as it has come, while those behind it still travel, so that the link does not
       rest between rounds.

    Every block is added up once and handed on as it is, so that all ranks have the same bits.

    Args:
        values: fp32 [N] on the CPU, not mutated; as many on each rank.
        rank, size: this rank's place in the ring, and how many there are (2 or more).
        neighbours: of this sum alone.

    Raises:
        ExchangeError: as ``neighbours``.
    """

    def __init__(self, values: Tensor, rank: int, size: int, neighbours: Neighbours) -> None:
        self._total = values.clone(memory_format=torch.contiguous_format)
        self._rank, self._size, self._neighbours = rank, size, neighbours
        segments = -(-values.numel() // (size * _SEGMENT_ELEMENTS)) or 1
        self._blocks = [block.tensor_split(segments) for block in self._total.tensor_split(size)]
        self._spare = [torch.empty_like(segment) for segment in self._blocks[0]]  # none is longer
        self._sending: dict[tuple[int, int], Wait] = {}
        self._arriving = [self._receive(0, each) for each in range(segments)]
        for each in range(segments):
            self._send(0, each)

    def finish(self) -> Tensor:
        """Return the sum (fp32 [N]); to be called once.

        Raises:
            ExchangeError: as ``neighbours``.
        """
        rounds = 2 * (self._size - 1)
        for number in range(rounds):
            for each, wait in enumerate(self._arriving):
                wait()
                if number < self._size - 1:
                    segment = self._blocks[self._block(number + 1)][each]
                    segment.add_(self._spare[each][: segment.numel()])
                if number + 1 < rounds:
                    self._arriving[each] = self._receive(number + 1, each)
                    self._send(number + 1, each)
        for sent in self._sending.values():
            sent()
        return self._total

    def _block(self, sent_in_round: int) -> int:
        return (self._rank - sent_in_round) % self._size

    def _send(self, number: int, each: int) -> None:
        block = self._block(number)
        self._sending[block, each] = self._neighbours.send(self._blocks[block][each])

    def _receive(self, number: int, each: int) -> Wait:
        block = self._block(number + 1)
        segment = self._blocks[block][each]
        if number < self._size - 1:
            return self._neighbours.receive(self._spare[each][: segment.numel()])
        self._sending.pop((block, each))()  # its memory is written now
        return self._neighbours.receive(segment)
