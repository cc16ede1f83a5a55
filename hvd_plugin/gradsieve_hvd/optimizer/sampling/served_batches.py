"""The batches that rank 0 deals to a rank of a parameter server, which takes as many as it can use."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.server.ranges import Pairs, count
from gradsieve_hvd.server.worker import Worker

ITERATED_AGAIN = (
    "a DynamicSampler was iterated again, or set to another epoch, while a loader goes on with the iteration "
    "before: use one loader at a time"
)


class ServedBatches:
    """The batches of a rank, from the loader that asks for them to the step that uses them.

    A batch is asked for while the one before is handed to the loader, so that an answer is there when the
    loader wants it. So a rank has one more than its loader prefetches and its model computes; see
    `gradsieve_hvd.server.sample_ledger.SampleLedger` for what becomes of those that it does not use.

    seen_before: samples behind the weights that training began with. open: whether a loader is amid an
    iteration.
    """

    def __init__(self) -> None:
        # Weak: a program that leaves its optimizer is noticed at once.
        self._sampler: weakref.ref[Any] | None = None
        self._handed_out: deque[Pairs] = deque()
        self._iteration = self._turn = self.seen_before = 0
        self._nominal = 1
        self._ended = False  # the present epoch, for this rank
        self.open = self._asked = False
        self._ahead: Pairs | None = None  # dealt by a worker that has finished

    def deal_by(self, sampler: Any) -> None:
        """Have a sampler ask for batches, rather than another one."""
        self._sampler = weakref.ref(sampler)

    def is_dealt_by(self, sampler: Any) -> bool:
        """Whether it is that one."""
        return self._sampler is not None and self._sampler() is sampler

    @property
    def dealt(self) -> bool:
        """Whether a sampler deals them."""
        return bool(self._iteration)

    @property
    def samples(self) -> int | None:
        """How many the next step's batch has; None if no sampler deals them."""
        if not self._iteration:
            return None
        if not self._handed_out:
            raise ConfigurationError(
                "optimizer.step() without a batch of the DynamicSampler: take one step for each batch that "
                "its loader yields"
            )
        return count(self._handed_out[0])

    @property
    def scale(self) -> float:
        """What the next step's gradient, a mean over its batch, is multiplied by, for every sample to count
        alike: samples of the batch over those of a nominal one.
        """
        return (self.samples or self._nominal) / self._nominal

    def used(self) -> None:
        """The next batch has been pushed."""
        if self._iteration:
            self._handed_out.popleft()

    def begin_epoch(self) -> None:
        """Another epoch comes than the one before."""
        self._turn, self._ended = self._turn + 1, False

    def deal(self, begin: Callable[[], Worker], epoch: int, data: dict[str, Any]) -> Iterator[Pairs]:
        """Yield an iteration's batches, as places in the epoch's order, until that is used up.

        begin: returns the worker, which it lets begin. data: see `SampleLedger`.

        Raises:
            ConfigurationError: another iteration has begun since.
            GradsieveError: see `Worker.next_batch`.
        """
        if self._ended:
            self.begin_epoch()
        self._iteration += 1
        self._handed_out.clear()
        self._ahead = None
        yield from self.go_on(begin, epoch, data)

    def go_on(self, begin: Callable[[], Worker], epoch: int, data: dict[str, Any]) -> Iterator[Pairs]:
        """Yield more batches of the present iteration; see `deal`."""
        iteration, turn = self._iteration, self._turn
        self._nominal = data["batch_size"]
        self.open = True
        try:
            self._ask(begin(), epoch, data)
            while places := self._next(begin):
                self._ask(begin(), epoch, data)
                self._handed_out.append(places)
                yield places
                if (iteration, turn) != (self._iteration, self._turn):
                    raise ConfigurationError(ITERATED_AGAIN)
            self._ended = True
        finally:
            if iteration == self._iteration:
                self.open = False

    def hand_over(self, held: Iterable[Pairs], nominal: int, *, ended: bool) -> None:
        """Go on with what this rank's loader has already. ended: whether that is all of the epoch."""
        self._handed_out.extend(held)
        self._iteration, self._nominal, self._ended = 1, nominal, ended

    def keep_answer(self, worker: Worker) -> None:
        """A worker has finished; what it was dealt last is for the next one."""
        if self._asked and self._ahead is None:
            self._ahead = worker.next_batch(self._iteration)

    def _ask(self, worker: Worker, epoch: int, data: dict[str, Any]) -> None:
        worker.ask_batch(self._iteration, self._turn, epoch, data)
        self._asked = True

    def _next(self, begin: Callable[[], Worker]) -> Pairs:
        places = begin().next_batch(self._iteration) if self._ahead is None else self._ahead
        self._asked, self._ahead = False, None
        return places
