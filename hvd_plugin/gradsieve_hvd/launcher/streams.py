"""Output on its way from the ranks to the user, without ever blocking the supervisor."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gradsieve_hvd.launcher.output import OutputFilter

_CHUNK = select.PIPE_BUF
_FULL = 1 << 20
HALF_LINE_SECONDS = 0.1
"""How long half a line waits for its rest: unbuffered Python writes what it prints in pieces."""


@dataclass
class Sink:
    """Where output goes: a descriptor, and what it has not taken yet.

    Attributes:
        descriptor: open for writing; whole lines and parts of lines go there unchanged.
        broken: nobody reads there any more.
    """

    descriptor: int
    broken: bool = False
    _pending: bytearray = field(default_factory=bytearray)

    @property
    def full(self) -> bool:
        """Whether sources should wait."""
        return len(self._pending) >= _FULL

    @property
    def waiting(self) -> bool:
        """Whether there is something to write."""
        return bool(self._pending)

    def put(self, data: bytes) -> None:
        """Queue ``data``."""
        if not self.broken:
            self._pending += data

    def write(self) -> None:
        """Write what a descriptor that poll(2) called writable takes without blocking."""
        try:
            written = os.write(self.descriptor, self._pending[:_CHUNK])
        except BrokenPipeError:
            self.broken = True
            written = len(self._pending)
        del self._pending[:written]


@dataclass
class Source:
    """One stream of a child process.

    Attributes:
        descriptor: open for reading; closed here at the end of the stream.
        sink: where it goes.
        filter: what becomes of it on the way.
        whole_lines: half a line waits for its rest, `HALF_LINE_SECONDS` at most, so that it does not end up
            within a line of another source of the same sink.
        closed: its end was reached.
    """

    descriptor: int
    sink: Sink
    filter: OutputFilter
    whole_lines: bool = False
    closed: bool = False
    _half: bytes = b""
    _half_is_due: float = float("inf")

    def read(self) -> None:
        """Pass on what a descriptor that poll(2) called readable has."""
        data = os.read(self.descriptor, 1 << 16)
        text = self._half + (self.filter.feed(data) if data else self.filter.close())
        end = len(text) if not (data and self.whole_lines) else 1 + max(map(text.rfind, (b"\n", b"\r")))
        self.sink.put(text[:end])
        if end:
            self._half_is_due = float("inf")
        self._half = text[end:]
        if self._half:
            self._half_is_due = min(self._half_is_due, time.monotonic() + HALF_LINE_SECONDS)
        if not data:
            os.close(self.descriptor)
            self.closed = True

    def pass_on_half_line(self) -> float:
        """Pass on half a line that has waited long enough; returns when the one that still waits has.

        Returns:
            By the monotonic clock; infinity if none waits.
        """
        if time.monotonic() >= self._half_is_due:
            self.sink.put(self._half)
            self._half, self._half_is_due = b"", float("inf")
        return self._half_is_due


def transfer(sources: list[Source], others: dict[int, Callable[[], None]], timeout: float | None) -> None:
    """Wait until something can be read or written, at most ``timeout`` seconds, and do it.

    Args:
        sources: streams to pass on; those whose sink is full wait.
        others: descriptor -> what to call when it becomes readable or its peer has gone.
        timeout: seconds, or None for as long as it takes.
    """
    half_line_is_due = min((source.pass_on_half_line() for source in sources), default=float("inf"))
    if half_line_is_due < float("inf"):
        until = half_line_is_due - time.monotonic()
        timeout = until if timeout is None else min(timeout, until)
    actions: dict[tuple[int, int], Callable[[], None]] = {
        (fd, select.POLLIN): call for fd, call in others.items()
    }
    for source in sources:
        if not source.closed and not source.sink.full:
            actions[source.descriptor, select.POLLIN] = source.read
        if source.sink.waiting:
            actions[source.sink.descriptor, select.POLLOUT] = source.sink.write
    poll = select.poll()
    for descriptor, event in actions:
        poll.register(descriptor, event)
    for descriptor, _ in poll.poll(None if timeout is None else max(0.0, timeout) * 1000):
        for event in (select.POLLIN, select.POLLOUT):
            if (descriptor, event) in actions:
                actions[descriptor, event]()
