"""Work of which some is done side by side, in threads that are started in its order."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")
_Task = tuple[Callable[[], Any], "Future[Any]"]


class SideBySide:
    """Threads that do what they are given, as many things at a time as there are threads.

    They end with this object, and do not keep the process alive.
    """

    def __init__(self, threads: int) -> None:
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._threads = threads
        self._started = False

    def start(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """Do it as soon as a thread is free, and return what waits for its result, or raises what it did."""
        if not self._started:
            self._started = True
            for _ in range(self._threads):
                threading.Thread(target=_run, args=(self._tasks,), name="gradsieve-sums", daemon=True).start()
                weakref.finalize(self, self._tasks.put, None)
        future: Future[Result] = Future()
        self._tasks.put((work, future))
        return future.result


def _run(tasks: queue.SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        work, future = task
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is waited for
            future.set_exception(error)
        del task, work, future  # asleep, the thread keeps no tensors alive
