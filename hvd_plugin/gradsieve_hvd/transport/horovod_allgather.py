"""Named allgathers of byte payloads through Horovod, each with a deadline.

Horovod itself has none: a rank that never submits its part leaves the others waiting in C++, where Python
cannot raise. What is waited for here polls, sleeps and raises; `watchdog` covers the waits inside Horovod.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gradsieve.errors import ExchangeError

from .running_clock import RUNNING

_POLL_SECONDS = 0.001  # sleeping leaves the core to ranks that still compute; Horovod's own wait spins
_SHUTDOWN_GRACE_SECONDS = 20.0


class Allgather:
    """One allgather in flight: every rank's bytes, concatenated in the order of ranks."""

    def __init__(self, payload: Tensor, name: str, process_set: Any, kind: str = "gradient") -> None:
        """Start it. ``payload``: uint8 ``[bytes]`` on the CPU, lengths may differ by rank; not mutated, kept
        until `wait` returns.
        """
        import horovod.torch as hvd

        self.name = name
        self.started = RUNNING.seconds()
        self._handle = hvd.allgather_async(payload, name=f"gradsieve.{kind}.{name}", process_set=process_set)

    def finished(self) -> bool:
        """Whether `wait` would return at once, or has returned."""
        return handle_finished(self._handle)

    def wait(self, timeout: float) -> Tensor:
        """Return the gathered uint8 ``[sum of bytes]``.

        Raises:
            ExchangeError: not finished ``timeout`` seconds after its start, or a rank called ``hvd.join()``.
            HorovodInternalError: Horovod was shut down (elastic training catches it).
        """
        import horovod.torch as hvd

        wait_for([self], timeout)
        try:
            gathered: Tensor = hvd.synchronize(self._handle)
        except hvd.HorovodInternalError as error:
            if "join" not in str(error).lower():
                raise
            raise ExchangeError(
                f"a rank called hvd.join() while '{self.name}' was exchanged: sparse gradients travel by "
                "allgather, which Horovod "
                "cannot do with ranks that have joined. Give every rank the same number of batches "
                "(drop_last, or a sampler that pads)."
            ) from error
        return gathered

    def overdue(self, timeout: float) -> bool:
        """Whether it is unfinished ``timeout`` seconds after its start, those that this process was stopped
        apart.
        """
        return RUNNING.seconds() - self.started > timeout and not self.finished()


def handle_finished(handle: int) -> bool:
    """Whether the collective behind a Horovod handle has ended. Callable from any thread."""
    import horovod.torch as hvd

    try:
        return bool(hvd.poll(handle))
    except ValueError:  # the handle was cleared: somebody has waited for it
        return True


def wait_for_handle(handle: int, timeout: float, missing: str) -> None:
    """Sleep until the collective behind a Horovod handle has ended.

    Raises:
        ExchangeError: it has not ``timeout`` seconds from now; ``missing`` says who misses what.
    """
    began = RUNNING.seconds()
    while not handle_finished(handle):
        if RUNNING.seconds() - began > timeout:
            raise ExchangeError(
                f"{missing} within {timeout:g} s; all ranks must make the same exchanges in the same order"
            )
        time.sleep(_POLL_SECONDS)


def wait_for(gathers: Iterable[Allgather], timeout: float) -> None:
    """Sleep until all have finished.

    Raises:
        ExchangeError: one is unfinished ``timeout`` seconds after its start; the message names all that are.
    """
    gathers = list(gathers)
    for gather in gathers:
        while not gather.finished():
            if gather.overdue(timeout):
                missing = [other.name for other in gathers if not other.finished()]
                raise ExchangeError(missing_message(missing, timeout))
            time.sleep(_POLL_SECONDS)


def missing_message(names: list[str], timeout: float) -> str:
    """What to tell a user whose exchange did not finish."""
    shown = ", ".join(f"'{name}'" for name in sorted(names)[:20]) + (
        f" and {len(names) - 20} more" if len(names) > 20 else ""
    )
    return (
        f"no answer from at least one rank within {timeout:g} s for {shown}. Usual reasons: the ranks "
        "differ in which parameters receive a "
        "gradient while groups is set; a rank runs without gradsieve or has left the training loop; a rank "
        "died or is slower than "
        "the timeout (raise timeout_seconds)."
    )


class HorovodMessages:
    """Messages among the ranks of a process set, by an allgather each.

    Args:
        process_set: the ranks.
        timeout: how long an answer may take, in seconds.
    """

    def __init__(self, process_set: Any, timeout: float) -> None:
        self._process_set, self._timeout = process_set, timeout

    @property
    def rank(self) -> int:
        """Number of this rank in the set; another one after an elastic reset, perhaps."""
        return int(self._process_set.rank())

    @property
    def size(self) -> int:
        """How many ranks the set has now."""
        return int(self._process_set.size())

    def tell(self, content: bytes, name: str) -> HorovodReplies:
        """Begin to tell all ranks ``content``."""
        return HorovodReplies(content, name, self._process_set, self._timeout)


class HorovodReplies:
    """One message of every rank, in flight."""

    def __init__(self, content: bytes, name: str, process_set: Any, timeout: float) -> None:
        framed = len(content).to_bytes(8, "little") + content
        payload = torch.frombuffer(bytearray(framed), dtype=torch.uint8)
        self._gather = Allgather(payload, name, process_set, kind="message")
        self._timeout = timeout

    def wait(self) -> list[bytes]:
        """Return all messages, in the order of the set's ranks.

        Raises:
            ExchangeError: see `Allgather.wait`.
        """
        gathered = bytes(self._gather.wait(self._timeout).numpy())
        messages: list[bytes] = []
        while gathered:
            end = 8 + int.from_bytes(gathered[:8], "little")
            messages.append(gathered[8:end])
            gathered = gathered[end:]
        return messages
