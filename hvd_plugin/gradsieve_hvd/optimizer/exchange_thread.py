"""A thread that exchanges while backward goes on."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from torch import Tensor

from gradsieve.errors import ExchangeError
from gradsieve_hvd.transport.base import AllReducing, Transport
from gradsieve_hvd.transport.running_clock import RUNNING

Result = TypeVar("Result")
_LOOK_SECONDS = 1.0


class CountedTransport:
    """Any transport, counted: sent_bytes and received_bytes so far, messages to itself apart."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.rank, self.size = inner.rank, inner.size
        self.sent_bytes = self.received_bytes = 0

    def send_receive(self, message: Tensor, to: int, source: int) -> Tensor:
        """See `Transport`."""
        received = self._inner.send_receive(message, to, source)
        self.sent_bytes += message.numel() if to != self.rank else 0
        self.received_bytes += received.numel() if source != self.rank else 0
        return received


class CountedAllReducing(CountedTransport):
    """A transport that sums by itself; its bytes are counted as those of a ring."""

    def __init__(self, inner: Transport, summing: AllReducing) -> None:
        super().__init__(inner)
        self._summing = summing

    def allreduce(self, values: Tensor) -> Tensor:
        """See `AllReducing`."""
        total = self._summing.allreduce(values)
        size = 2 * values.numel() * values.element_size() * (self.size - 1) // self.size
        self.sent_bytes += size
        self.received_bytes += size
        return total


class Pending(Generic[Result]):
    """Work of an `ExchangeThread` under way.

    sent_bytes, received_bytes: over the transport, once it is finished.
    """

    def __init__(self, work: Callable[[Transport], Result], what: str, timeout: float) -> None:
        self.future: Future[Result] = Future()
        self._work: Callable[[Transport], Result] | None = work
        self.sent_bytes = self.received_bytes = 0
        self._what, self._timeout = what, timeout

    def run(self, transport: Transport) -> Result:
        """Do the work; in the thread, once, so that what it holds is let go."""
        work, self._work = self._work, None
        assert work is not None
        return work(transport)

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


class ExchangeThread:
    """Runs what is exchanged over a transport, one thing after another, in the order of submission.

    All ranks submit the same things in the same order. Once something has failed, ranks may no longer be at
    the same place, and whatever comes later fails, too. The thread ends with this object.

    Args:
        transport: of this thread alone.
        timeout: how long a caller waits for what it has submitted, in seconds.
    """

    def __init__(self, transport: Transport, timeout: float) -> None:
        self.transport = transport
        self._timeout = timeout
        self._queue: queue.SimpleQueue[Pending[Any] | None] = queue.SimpleQueue()
        thread = threading.Thread(
            target=_run, args=(transport, self._queue), name="gradsieve-exchange", daemon=True
        )
        thread.start()
        weakref.finalize(self, self._queue.put, None)

    def submit(self, work: Callable[[Transport], Result], what: str) -> Pending[Result]:
        """Exchange something; ``what`` it is stands in errors."""
        pending = Pending(work, what, self._timeout)
        self._queue.put(pending)
        return pending


def _run(transport: Transport, works: queue.SimpleQueue[Pending[Any] | None]) -> None:
    counted = CountedTransport(transport)
    if isinstance(transport, AllReducing):
        counted = CountedAllReducing(transport, transport)
    failed: BaseException | None = None
    while (pending := works.get()) is not None:
        try:
            pending.future.set_result(_done(pending, counted, failed))
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is waited for
            failed = failed or error
            pending.future.set_exception(error)
        del pending  # asleep, the thread keeps no gradients alive


def _done(pending: Pending[Result], counted: CountedTransport, failed: BaseException | None) -> Result:
    if failed is not None:
        raise ExchangeError("an exchange before this one has failed, and the ranks have parted") from failed
    sent, received = counted.sent_bytes, counted.received_bytes
    result = pending.run(counted)
    pending.sent_bytes = counted.sent_bytes - sent
    pending.received_bytes = counted.received_bytes - received
    return result
