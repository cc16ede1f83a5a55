"""A thread that exchanges while backward goes on."""

from __future__ import annotations

import itertools
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

from torch import Tensor

from gradsieve.errors import ExchangeError, GradsieveError
from gradsieve_hvd.transport.base import (
    AllReducing,
    Arriving,
    BeginningSums,
    Posting,
    Transport,
    begin_allgather,
)
from gradsieve_hvd.transport.ring_sum import AT_ONCE_ELEMENTS
from gradsieve_hvd.transport.running_clock import RUNNING

Result = TypeVar("Result")
_LOOK_SECONDS = 1.0


class CountedTransport:
    """Any transport, for one exchange: allgathers have a channel of its own, and what travels is counted.

    Args:
        inner: carries the messages.
        channel: of allgathers.
        clock: in seconds.

    sent_bytes, received_bytes: so far, messages to itself apart. By the clock, sent_at: when the first
    message left; heard: when this rank found the last one that has come; until then, both when this was
    made. waited_seconds: for messages, so far; the rest between both moments this rank did something else.
    posted: whether a message has left without being waited for. at_once: whether a dense sum was, without
    rounds.
    """

    def __init__(self, inner: Transport, channel: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._inner, self._channel, self._clock = inner, channel, clock
        self.rank, self.size = inner.rank, inner.size
        self.sent_bytes = self.received_bytes = 0
        self.waited_seconds = 0.0
        self.sent_at = self.heard = clock()
        self._sent = self.posted = self.at_once = False

    def send_receive(self, message: Tensor, to: int, source: int) -> Tensor:
        """See `Transport`."""
        with self._waiting():
            received = self._inner.send_receive(message, to, source)
        self.sent_bytes += message.numel() if to != self.rank else 0
        self.received_bytes += received.numel() if source != self.rank else 0
        return received

    def begin_allgather(self, message: Tensor, channel: int = 0) -> Arriving:  # noqa: ARG002 - has its own
        """See `Posting`; without one, a ring hands messages on, on the average as many bytes."""
        if isinstance(self._inner, Posting):
            self._sends()
            self.posted = True
        arriving = begin_allgather(self._inner, message, self._channel)
        self.sent_bytes += message.numel() * (self.size - 1)

        def counted() -> Iterator[Tensor]:
            messages = arriving()
            for source in range(self.size):
                with self._waiting():
                    received = next(messages)
                self.received_bytes += received.numel() if source != self.rank else 0
                yield received
            yield from messages  # none: the transport sees its own messages off

        return counted

    def _sends(self) -> None:
        if not self._sent:
            self._sent, self.sent_at = True, self._clock()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Within, messages are waited for; at the end they have come."""
        self._sends()
        began = self._clock()
        yield
        self.heard = self._clock()
        self.waited_seconds += self.heard - began

    def _count_sum(self, values: Tensor) -> None:
        """Count what was sent for the sum of all ranks' ``values``: to all others, or around a ring."""
        times = 1 if self.at_once else 2 / self.size
        size = round(times * values.numel() * values.element_size() * (self.size - 1))
        self.sent_bytes += size
        self.received_bytes += size


class CountedAllReducing(CountedTransport):
    """A transport that sums by itself; its bytes are counted as those of a ring."""

    def __init__(self, inner: Transport, summing: AllReducing, channel: int) -> None:
        super().__init__(inner, channel)
        self._summing = summing

    def allreduce(self, values: Tensor) -> Tensor:
        """See `AllReducing`."""
        with self._waiting():
            total = self._summing.allreduce(values)
        self._count_sum(values)
        return total


class CountedBeginningSums(CountedTransport):
    """A transport that begins sums; see `CountedTransport`."""

    def __init__(self, inner: Transport, summing: BeginningSums, channel: int) -> None:
        super().__init__(inner, channel)
        self._summing = summing

    def begin_allreduce(self, values: Tensor, channel: int = 0) -> Callable[[], Tensor]:  # noqa: ARG002 - has its own
        """See `BeginningSums`."""
        self._sends()
        self.posted, self.at_once = True, values.numel() <= AT_ONCE_ELEMENTS
        finish = self._summing.begin_allreduce(values, self._channel)

        def counted() -> Tensor:
            with self._waiting():
                total = finish()
            self._count_sum(values)
            return total

        return counted


Begun = Callable[[Transport], Callable[[], Result]]
"""Begins an exchange over a transport without waiting for anyone, and returns what finishes it."""


class Pending(Generic[Result]):
    """Work of an `ExchangeThread` under way.

    transport: counts its bytes. submitted: when it was, by ``time.monotonic()``.
    """

    def __init__(
        self, finish: Callable[[], Result], transport: CountedTransport, what: str, timeout: float
    ) -> None:
        self.future: Future[Result] = Future()
        self.submitted = time.monotonic()
        self.transport = transport
        self._what, self._timeout = what, timeout
        self._finish: Callable[[], Result] | None = finish

    def finish(self) -> Result:
        """Do the rest; in the thread, once, so that what it holds is let go."""
        finish, self._finish = self._finish, None
        assert finish is not None
        return finish()

    @property
    def finished(self) -> bool:
        """Whether `wait` would return at once."""
        return self.future.done()

    def wait(self) -> Result:
        """Return what came of it.

        Raises:
            ExchangeError: it was not done within the time-out from now, or another exchange before it failed.
            Exception: what the work raised.
        """
        began = RUNNING.seconds()
        while RUNNING.seconds() - began < self._timeout:
            try:
                return self.future.result(_LOOK_SECONDS)
            except TimeoutError:
                if self.future.done():
                    raise
        raise ExchangeError(
            f"{self._what} was not exchanged within {self._timeout:g} s: a rank has died, has left the "
            "training loop or is slower than the time-out (raise timeout_seconds)"
        )


class _Failure:
    """error: what failed first among the exchanges of a thread."""

    error: BaseException | None = None

    def raise_if_any(self) -> None:
        if isinstance(self.error, RuntimeError) and not isinstance(self.error, GradsieveError):
            raise self.error  # a library's: elastic training catches Horovod's, to go on without a rank
        if self.error is not None:
            raise ExchangeError(
                "an exchange before this one has failed, and the ranks have parted"
            ) from self.error


class ExchangeThread:
    """Finishes what is exchanged over a transport, one thing after another, in the order of submission.

    All ranks submit the same things in the same order. What can be sent without waiting leaves at once, from
    the thread that submits: on a busy machine this one might wait for a core longer than the messages take.
    Once something has failed, ranks may no longer be at the same place, and whatever comes later fails, too.
    The thread ends with this object.

    Args:
        transport: of this thread alone.
        timeout: how long a caller waits for what it has submitted, in seconds.
    """

    def __init__(self, transport: Transport, timeout: float) -> None:
        self.transport = transport
        self._timeout = timeout
        self._queue: queue.SimpleQueue[Pending[Any] | None] = queue.SimpleQueue()
        self._failure, self._numbers = _Failure(), itertools.count()
        thread = threading.Thread(
            target=_run, args=(self._queue, self._failure), name="gradsieve-exchange", daemon=True
        )
        thread.start()
        weakref.finalize(self, self._queue.put, None)

    def submit(self, begin: Begun[Result], what: str) -> Pending[Result]:
        """Exchange something; ``what`` it is stands in errors. Whatever fails is raised to who waits."""
        counted = self._counted(next(self._numbers))
        pending = Pending(self._begun(begin, counted), counted, what, self._timeout)
        self._queue.put(pending)
        return pending

    def _begun(self, begin: Begun[Result], transport: Transport) -> Callable[[], Result]:
        try:
            self._failure.raise_if_any()
            return begin(transport)
        except Exception as error:  # noqa: BLE001 - raised in its turn, when the step can be rolled back
            return partial(_raise, error)

    def _counted(self, channel: int) -> CountedTransport:
        if isinstance(self.transport, BeginningSums):
            return CountedBeginningSums(self.transport, self.transport, channel)
        if isinstance(self.transport, AllReducing):
            return CountedAllReducing(self.transport, self.transport, channel)
        return CountedTransport(self.transport, channel)


def _raise(error: Exception) -> NoReturn:
    raise error


def _run(works: queue.SimpleQueue[Pending[Any] | None], failure: _Failure) -> None:
    while (pending := works.get()) is not None:
        try:
            failure.raise_if_any()
            pending.future.set_result(pending.finish())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is waited for
            failure.error = failure.error or error
            pending.future.set_exception(error)
        del pending  # asleep, the thread keeps no gradients alive
