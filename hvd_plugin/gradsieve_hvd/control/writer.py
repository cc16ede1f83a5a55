"""The ranks' output on its way to the coordinator's own, without ever blocking its event loop."""

from __future__ import annotations

import os
import queue
import threading

from gradsieve_hvd.control.children import STDOUT

_MOST_BYTES = 64 << 20
_CLOSE_SECONDS = 10.0


class Writer:
    """Writes to standard output and error in a thread; drops and counts what nobody reads beyond 64 MiB."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, daemon=True, name="output")
        self._thread.start()

    def put(self, stream: str, data: bytes) -> None:
        """Queue ``data`` for ``stdout`` or ``stderr``."""
        with self._lock:
            if self._waiting + len(data) > _MOST_BYTES:
                self._dropped += len(data)
                return
            self._waiting += len(data)
            if self._dropped:
                data = f"\n[gradsieve: {self._dropped} bytes of output were dropped here]\n".encode() + data
                self._dropped = 0
        self._queue.put((1 if stream == STDOUT else 2, data))

    def close(self) -> None:
        """Wait until all is written, as long as somebody reads."""
        self._queue.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            descriptor, data = item
            with self._lock:
                self._waiting = max(0, self._waiting - len(data))
            try:
                while data:
                    data = data[os.write(descriptor, data) :]
            except OSError:
                # Nobody reads there any more; the ranks' work is worth more than their words.
                continue
