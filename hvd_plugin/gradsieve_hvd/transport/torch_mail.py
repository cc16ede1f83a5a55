"""Letters over a process group of ``torch.distributed`` that sends from CPUs (gloo).

gloo neither says whether a message has come without waiting for it, nor lets go of what was sent before
somebody has waited for that: so each of the other ranks has a thread that waits for letters from it, and one
that sends them.
"""

from __future__ import annotations

import queue
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradsieve.errors import ExchangeError

_FIRST_TAG = 100_000  # above those of allgathers; two for each time mail is opened
_FAREWELL = -1  # instead of a length
_FOREVER = timedelta(days=1000)

_Box = queue.Queue[tuple[int, Tensor | None]]  # see thread_mail.Box: no SimpleQueue
_Outbox = queue.SimpleQueue[Tensor | None]


class TorchMail:
    """Letters in a process group.

    Args:
        group: the process group; None for the default one.
        ranks: numbers of its ranks in the default group, by rank.
        rank: this one's.
        number: how often mail was opened before.

    rank, size: see `Mail`.
    """

    def __init__(self, group: Any, ranks: list[int], rank: int, number: int) -> None:
        self.rank, self.size = rank, len(ranks)
        self._box: _Box = queue.Queue()
        self._outboxes: dict[int, _Outbox] = {}
        self._threads: list[threading.Thread] = []
        tags = (_FIRST_TAG + 2 * number, _FIRST_TAG + 2 * number + 1)
        for other, there in enumerate(ranks):
            if other != rank:
                outbox: _Outbox = queue.SimpleQueue()
                self._outboxes[other] = outbox
                self._start(_receive, group, there, tags, other, self._box)
                self._start(_send, group, there, tags, outbox)

    def post(self, letter: Tensor, to: int) -> None:
        """See `Mail`."""
        if to == self.rank:
            self._box.put((to, letter))
        else:
            self._outboxes[to].put(letter.contiguous())

    def collect(self, seconds: float) -> tuple[int, Tensor] | None:
        """See `Mail`."""
        try:
            source, letter = self._box.get(timeout=seconds)
        except queue.Empty:
            return None
        if letter is None:
            raise ExchangeError(f"rank {self.rank}: the connection to rank {source} was lost")
        return source, letter

    def close(self, seconds: float) -> None:
        """See `Mail`."""
        for outbox in self._outboxes.values():
            outbox.put(None)
        ends = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(ends - time.monotonic(), 0.0))

    def _start(self, work: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, name="gradsieve-mail", daemon=True)
        self._threads.append(thread)
        thread.start()


def _receive(group: Any, number: int, tags: tuple[int, int], source: int, box: _Box) -> None:
    """tags: of lengths, and of letters."""
    try:
        while (length := int(_received(torch.empty(1, dtype=torch.int64), group, number, tags[0]))) >= 0:
            letter = torch.empty(length, dtype=torch.uint8)
            box.put((source, _received(letter, group, number, tags[1])))
    except RuntimeError:  # gloo's: the connection was closed
        box.put((source, None))


def _received(into: Tensor, group: Any, number: int, tag: int) -> Tensor:
    work = dist.irecv(into, number, group, tag)
    if work is not None:
        work.wait(_FOREVER)
    return into


def _send(group: Any, number: int, tags: tuple[int, int], outbox: _Outbox) -> None:
    try:
        while (letter := outbox.get()) is not None:
            _sent(torch.tensor([letter.numel()]), group, number, tags[0])
            _sent(letter, group, number, tags[1])
        _sent(torch.tensor([_FAREWELL]), group, number, tags[0])
    except RuntimeError:  # the thread that receives says that the rank is lost
        return


def _sent(what: Tensor, group: Any, number: int, tag: int) -> None:
    work = dist.isend(what, number, group, tag)
    if work is not None:
        work.wait(_FOREVER)
