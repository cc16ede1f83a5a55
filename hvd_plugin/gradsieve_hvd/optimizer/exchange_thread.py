"""A thread that exchanges while backward goes on."""

from __future__ import annotations

import atexit
import itertools
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

from gradsieve.errors import ExchangeError, GradsieveError
from gradsieve_hvd.transport.base import Transport
from gradsieve_hvd.transport.rest import Advancing
from gradsieve_hvd.transport.running_clock import RUNNING

from .counted_transport import CountedTransport, counted_transport

Result = TypeVar("Result")
_LOOK_SECONDS = 1.0
_FAREWELL_SECONDS = 5.0


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

    def advance(self) -> None:
        """Wait for the first round of messages, if there are two; in the thread.

        Not where ranks must wait in one order: which of them finds something else to advance before it
        finishes what is first differs, and a rank in a sum and one in a message would wait for each other.
        """
        if isinstance(self._finish, Advancing) and not self.transport.in_order:
            self._finish.advance()

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
    """Finishes what is exchanged over a transport, one thing after another, in the order of submission; what
    has two rounds of messages is brought to the second before an earlier one is finished.

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
        _RUNNING[thread] = self._queue
        thread.start()
        weakref.finalize(self, self._queue.put, None)

    def submit(self, begin: Begun[Result], what: str) -> Pending[Result]:
        """Exchange something; ``what`` it is stands in errors. Whatever fails is raised to who waits."""
        counted = counted_transport(self.transport, next(self._numbers), what)
        pending = Pending(self._begun(begin, counted), counted, what, self._timeout)
        self._queue.put(pending)
        return pending

    def _begun(self, begin: Begun[Result], transport: Transport) -> Callable[[], Result]:
        try:
            self._failure.raise_if_any()
            return begin(transport)
        except Exception as error:  # noqa: BLE001 - raised in its turn, when the step can be rolled back
            return partial(_raise, error)


_RUNNING: weakref.WeakKeyDictionary[threading.Thread, queue.SimpleQueue[Pending[Any] | None]] = (
    weakref.WeakKeyDictionary()
)
"""What each thread works on."""


@atexit.register
def _end_threads() -> None:
    """Wait a little until threads have ended: one that comes back from C++ while Python is being taken down
    aborts the process. What waits for a rank that has gone does not come back.
    """
    until = time.monotonic() + _FAREWELL_SECONDS
    for thread, works in list(_RUNNING.items()):
        works.put(None)
        thread.join(max(until - time.monotonic(), 0.0))


def _raise(error: Exception) -> NoReturn:
    raise error


def _run(works: queue.SimpleQueue[Pending[Any] | None], failure: _Failure) -> None:
    """Advance all that there is before finishing the first of it; see `Advancing`."""
    under_way: deque[Pending[Any]] = deque()
    ends = False
    while under_way or not ends:
        try:
            pending = works.get(block=not under_way and not ends)
        except queue.Empty:
            _do(under_way[0], failure, lambda each: each.future.set_result(each.finish()))
            under_way.popleft()
        else:
            ends = ends or pending is None
            if pending is not None:
                under_way.append(pending)
                _do(pending, failure, lambda each: each.advance())
            del pending  # asleep, the thread keeps no gradients alive


def _do(pending: Pending[Any], failure: _Failure, work: Callable[[Pending[Any]], None]) -> None:
    if pending.finished:  # it has failed
        return
    try:
        failure.raise_if_any()
        work(pending)
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is waited for
        failure.error = failure.error or error
        pending.future.set_exception(error)
