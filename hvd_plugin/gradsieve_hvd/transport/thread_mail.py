"""Letters among ranks that are threads of one process."""

from __future__ import annotations

import queue
from collections.abc import Sequence

from torch import Tensor

from gradsieve.errors import ExchangeError

# Before Python 3.13 `SimpleQueue.get` waits for ever if its time-out passes at the wrong moment after a put.
Box = queue.Queue[tuple[int, Tensor | None]]
"""Senders and what they sent; None instead of a letter says that the sender has failed."""


class ThreadMail:
    """One rank's letters.

    rank, size: see `Mail`. sent_bytes: what this rank has posted so far, letters to itself apart.
    """

    def __init__(self, rank: int, boxes: Sequence[Box]) -> None:
        self.rank, self.size, self.sent_bytes = rank, len(boxes), 0
        self._boxes = boxes

    def post(self, letter: Tensor, to: int) -> None:
        """See `Mail`."""
        self._boxes[to].put((self.rank, letter))
        self.sent_bytes += letter.numel() if to != self.rank else 0

    def collect(self, seconds: float) -> tuple[int, Tensor] | None:
        """See `Mail`."""
        try:
            source, letter = self._boxes[self.rank].get(timeout=seconds)
        except queue.Empty:
            return None
        if letter is None:
            raise ExchangeError(f"rank {self.rank}: rank {source} has failed")
        return source, letter

    def close(self, seconds: float) -> None:
        """See `Mail`; nothing is under way."""
