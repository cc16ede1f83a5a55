"""A dense sum in which ranks send to all others, rather than around a ring: one round or two."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .peers import Peers, Wait
from .rest import Rest


class BlockSum:
    """A sum over all ranks: 2 (P - 1) / P N values sent by each, the least there can be, in two rounds.

    1. Cut the values into P equal blocks, and send each rank its own; this needs to wait for nobody.
    2. Add up the own block in the order of ranks, and send the sum to all.

    A ring has 2 (P - 1) rounds, and where ranks share cores with what computes, each of them waits until the
    next rank's thread gets its turn.

    Args:
        values: fp32 [N] on the CPU, contiguous; not mutated, and not to be until the sum is there.
        rank, size, peers: see `gradsieve_hvd.transport.sums.begin_sum`.

    Raises:
        ExchangeError: as ``peers``.
    """

    def __init__(self, values: Tensor, rank: int, size: int, peers: Peers) -> None:
        self._rank, self._size, self._peers = rank, size, peers
        self._total = torch.empty_like(values)
        blocks = values.tensor_split(size)
        own = blocks[rank]
        self._parts = [own if source == rank else torch.empty_like(own) for source in range(size)]
        self._arriving = _receive(self._parts, rank, peers)
        self._sending = [peers.send(blocks[to], to) for to in _others(rank, size)]

    def rest(self) -> Callable[[], Tensor]:
        """Return what waits for both rounds and returns the sum (fp32 [N]); see `Advancing`."""
        return Rest(self._hand_on, self._finish)

    def _hand_on(self) -> list[Wait]:
        sums = self._total.tensor_split(self._size)
        _wait(self._arriving)
        _add_up(self._parts, sums[self._rank])
        self._parts.clear()
        others = _others(self._rank, self._size)
        self._sending += [self._peers.send(sums[self._rank], to) for to in others]
        return _receive(sums, self._rank, self._peers)

    def _finish(self, arriving: Sequence[Wait]) -> Tensor:
        _wait(arriving)
        _wait(self._sending)
        return self._total


def sum_at_once(values: Tensor, rank: int, size: int, peers: Peers) -> Callable[[], Tensor]:
    """Send all values to all ranks, and return what adds up theirs; see `BlockSum`."""
    parts = [values if source == rank else torch.empty_like(values) for source in range(size)]
    arriving = _receive(parts, rank, peers)
    sending = [peers.send(values, to) for to in _others(rank, size)]

    def finish() -> Tensor:
        total = torch.empty_like(values)
        _wait(arriving)
        _add_up(parts, total)
        _wait(sending)
        return total

    return finish


def _others(rank: int, size: int) -> list[int]:
    """Return the other ranks, beginning with the next, so that not all ranks send to one first."""
    return [(rank + away) % size for away in range(1, size)]


def _receive(into: Sequence[Tensor], rank: int, peers: Peers) -> list[Wait]:
    return [peers.receive(into[source], source) for source in _others(rank, len(into))]


def _wait(waits: Sequence[Wait]) -> None:
    for wait in waits:
        wait()


def _add_up(parts: Sequence[Tensor], total: Tensor) -> None:
    total.copy_(parts[0])
    for part in parts[1:]:
        total += part
