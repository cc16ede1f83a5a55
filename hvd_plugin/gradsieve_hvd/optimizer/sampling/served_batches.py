"""The batches that rank 0 deals to a rank of a parameter server, which takes as many as it can use."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.server.ranges import Pairs, count
from gradsieve_hvd.server.worker import Worker


class ServedBatches:
    """The batches of a rank, from the loader that asks for them to the step that uses them.

    A batch is asked for while the one before is handed to the loader, so that an answer is there when the
    loader wants it. So a rank has one more than its loader prefetches and its model computes; see
    `gradsieve_hvd.server.sample_ledger.SampleLedger` for what becomes of those that it does not use.

    seen_before: samples behind the weights that training began with.
    """

    def __init__(self) -> None:
        self._handed_out: deque[Pairs] = deque()
        self._iteration = self._turn = self.seen_before = 0
        self._nominal = 1
        self._ended = False  # the present epoch, for this rank

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
        """Yield batches, as places in the epoch's order, until it is used up.

        begin: returns the worker, which it lets begin. data: see `SampleLedger`.

        Raises:
            ConfigurationError: another iteration has begun since.
            GradsieveError: see `Worker.next_batch`.
        """
        if self._ended:
            self.begin_epoch()
        self._iteration += 1
        self._handed_out.clear()
        self._nominal = data["batch_size"]
        iteration, turn = self._iteration, self._turn
        begin().ask_batch(iteration, turn, epoch, data)
        while places := begin().next_batch(iteration):
            begin().ask_batch(iteration, turn, epoch, data)
            self._handed_out.append(places)
            yield places
            if iteration != self._iteration:
                raise ConfigurationError(
                    "a DynamicSampler was iterated again while a loader goes on with the iteration before: "
                    "use one loader at a time"
                )
        self._ended = True
