"""A thread that ends a step whose collectives do not finish although the main thread waits for them inside
Horovod.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable
from typing import Any, Protocol

from gradsieve_hvd.transport.horovod_allgather import handle_finished, missing_message
from gradsieve_hvd.transport.running_clock import RUNNING

from . import horovod_internals
from .context import HorovodContext

_LOOK_SECONDS = 1.0
_SHUTDOWN_GRACE_SECONDS = 20.0


class Watched(Protocol):
    """What the watchdog looks after."""

    def stalled(self) -> list[str]:
        """Names of the tensors whose collectives have been under way for longer than the time-out."""


def overdue(optimizer: Any, contexts: Iterable[HorovodContext], timeout: float) -> list[str]:
    """Names of the tensors, compressed or dense, whose exchange has been under way for more than ``timeout``
    seconds.

    A collective that has meanwhile been waited for counts as finished. Callable from any thread.
    """
    old = (context for context in contexts if context.started < RUNNING.seconds() - timeout)
    return [context.state.name for context in old if not _finished(optimizer, context)]


def _finished(optimizer: Any, context: HorovodContext) -> bool:
    handle = horovod_internals.handle_of(optimizer, context.state.parameter)
    reduced = handle is None or handle_finished(handle)
    return reduced and (context.gather is None or context.gather.finished())


def watch(watched: Watched, timeout: float) -> None:
    """Start the thread; it ends with ``watched``.

    1. Every second, ask for collectives that are overdue. Twice in a row, so that the main thread, which can
       raise a proper error where it waits in Python, does so first.
    2. Say which; shut Horovod down, so that pending collectives fail with ``HorovodInternalError`` on all
       ranks.
    3. Should even that not return (a rank is stopped, a host is gone), end this process.
    """
    thread = threading.Thread(
        target=_look, args=(weakref.ref(watched), timeout), name="gradsieve-watchdog", daemon=True
    )
    thread.start()


def _look(reference: weakref.ref[Watched], timeout: float) -> None:
    overdue_before = False
    while True:
        time.sleep(_LOOK_SECONDS)
        RUNNING.seconds()  # so that it goes on while nobody waits
        watched = reference()
        if watched is None:
            return
        names = watched.stalled()
        del watched  # asleep, the thread must not keep the optimizer alive
        if names and overdue_before:
            _end(names, timeout)
            return
        overdue_before = bool(names)


def _end(names: list[str], timeout: float) -> None:
    import horovod.torch as hvd

    rank = hvd.rank()
    print(
        f"gradsieve: rank {rank}: {missing_message(names, timeout)} Shutting Horovod down.",
        file=sys.stderr,
        flush=True,
    )
    shutdown = threading.Thread(target=hvd.shutdown, daemon=True)
    shutdown.start()
    shutdown.join(_SHUTDOWN_GRACE_SECONDS)
    if shutdown.is_alive():
        print(
            f"gradsieve: rank {rank}: Horovod did not shut down; ending this process.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(os.EX_TEMPFAIL)
