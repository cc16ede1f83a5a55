"""Ranks that are threads of one process: for tests, simulations and measurements."""

from __future__ import annotations

import itertools
import queue
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch import Tensor

from gradsieve.errors import ExchangeError

from .base import Arriving
from .thread_mail import Box, ThreadMail

Result = TypeVar("Result")

_SECONDS = 60.0
_SWAPPED = -1  # the channel of `send_receive`


class _Mailboxes:
    """boxes: sender, receiver -> messages under way with their channels; None says that the sender has
    failed.
    """

    def __init__(self, size: int) -> None:
        self.boxes: dict[tuple[int, int], queue.Queue[tuple[int, Tensor] | None]] = {
            (sender, receiver): queue.Queue() for sender in range(size) for receiver in range(size)
        }
        self._size, self._letters = size, dict[int, list[Box]]()
        self._failed, self._lock = set[int](), threading.Lock()

    def letters(self, number: int) -> list[Box]:
        """Return the boxes for letters, by receiver, that are used when mail was opened so often before."""
        with self._lock:
            if number not in self._letters:
                self._letters[number] = [queue.Queue() for _ in range(self._size)]
                self._tell(self._letters[number], self._failed)
            return self._letters[number]

    def fail(self, rank: int) -> None:
        """Tell all others that a rank sends nothing more."""
        for other in range(self._size):
            self.boxes[rank, other].put(None)
        with self._lock:
            self._failed.add(rank)
            for boxes in self._letters.values():
                self._tell(boxes, {rank})

    def _tell(self, boxes: list[Box], failed: set[int]) -> None:
        for box in boxes:
            for rank in failed:
                box.put((rank, None))


class ThreadTransport:
    """One rank of `run_ranks`; one thread of it receives.

    rank, size: see `Transport`. sent_bytes: what this rank has sent so far, messages to itself apart.
    """

    def __init__(self, rank: int, size: int, mailboxes: _Mailboxes, timeout: float) -> None:
        self.rank, self.size, self.sent_bytes = rank, size, 0
        self._mailboxes, self._boxes, self._timeout = mailboxes, mailboxes.boxes, timeout
        self._mails = itertools.count()
        self._early: defaultdict[tuple[int, int], deque[Tensor]] = defaultdict(deque)

    def send_receive(self, message: Tensor, to: int, source: int) -> Tensor:
        """Send to one rank and return what another one has sent at the same time.

        Raises:
            ExchangeError: that rank has failed, or did not send within the time-out.
        """
        self._send(message, to, _SWAPPED)
        return self._receive(source, _SWAPPED)

    def begin_allgather(self, message: Tensor, channel: int = 0) -> Arriving:
        """Send a message to all ranks, and return without waiting; see `Posting`."""
        return self.begin_alltoall([message] * self.size, channel)

    def begin_alltoall(self, messages: Sequence[Tensor], channel: int = 0) -> Arriving:
        """Send each rank its own message, and return without waiting; see `PostingBlocks`."""
        for to in range(self.size):
            self._send(messages[to], to, channel)

        def arriving() -> Iterator[Tensor]:
            return (self._receive(source, channel) for source in range(self.size))

        return arriving

    def open_mail(self) -> ThreadMail:
        """See `gradsieve_hvd.transport.mail.Mailing`."""
        return ThreadMail(self.rank, self._mailboxes.letters(next(self._mails)))

    def _send(self, message: Tensor, to: int, channel: int) -> None:
        self._boxes[self.rank, to].put((channel, message))
        self.sent_bytes += message.numel() if to != self.rank else 0

    def _receive(self, source: int, channel: int) -> Tensor:
        early = self._early[source, channel]
        while not early:
            try:
                received = self._boxes[source, self.rank].get(timeout=self._timeout)
            except queue.Empty:
                raise ExchangeError(
                    f"rank {self.rank}: nothing from rank {source} within {self._timeout:g} s; all ranks "
                    "must make the same exchanges in the same order"
                ) from None
            if received is None:
                raise ExchangeError(f"rank {self.rank}: rank {source} has failed")
            self._early[source, received[0]].append(received[1])
        message = early.popleft()
        if not early:
            del self._early[source, channel]
        return message

    def fail(self) -> None:
        """Tell all others that this rank sends nothing more."""
        self._mailboxes.fail(self.rank)


def run_ranks(
    size: int, work: Callable[[ThreadTransport], Result], timeout: float = _SECONDS
) -> list[Result]:
    """Run ``work`` in a thread per rank and return what each returned, by rank.

    Raises:
        Exception: what a rank raised; that of the rank that failed first, as the others fail with it.
    """
    mailboxes, failed, lock = _Mailboxes(size), list[BaseException](), threading.Lock()

    def run(rank: int) -> Result:
        transport = ThreadTransport(rank, size, mailboxes, timeout)
        try:
            return work(transport)
        except BaseException as error:
            with lock:
                failed.append(error)
            transport.fail()
            raise

    with ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(run, rank) for rank in range(size)]
    if failed:
        raise failed[0]
    return [future.result() for future in futures]
