"""Small messages over an `ExchangeThread`."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import torch
from torch import Tensor

from gradsieve.errors import ExchangeError
from gradsieve_hvd.transport.base import Transport, begin_allgather

from .exchange_thread import ExchangeThread, Pending

_NAME_BYTES = 4


class ThreadMessages:
    """Messages among the ranks of a thread's transport.

    What is told while gradients travel waits for `flush`, which comes at the same place on all ranks; a
    gradient that becomes ready may not be the same one everywhere.
    """

    def __init__(self, thread: ExchangeThread) -> None:
        self._thread = thread
        self._waiting: list[ThreadReplies] = []

    @property
    def rank(self) -> int:
        """Number of this rank; another one after a reset of elastic training, perhaps."""
        return self._thread.transport.rank

    @property
    def size(self) -> int:
        """How many ranks there are now."""
        return self._thread.transport.size

    def use(self, thread: ExchangeThread) -> None:
        """Go on over another thread; what waits to be told is forgotten."""
        self._thread = thread
        self._waiting.clear()

    def tell(self, content: bytes, name: str) -> ThreadReplies:
        """Begin to tell all ranks ``content``, at the next `flush` or when somebody waits for the answers."""
        replies = ThreadReplies(content, name, self)
        self._waiting.append(replies)
        return replies

    def flush(self) -> None:
        """Send what was told, in its order."""
        waiting, self._waiting = self._waiting, []
        for replies in waiting:
            replies.send(self._thread)


class ThreadReplies:
    """One message of every rank, under way."""

    def __init__(self, content: bytes, name: str, messages: ThreadMessages) -> None:
        self._name, self._messages = name, messages
        key = zlib.crc32(name.encode()).to_bytes(_NAME_BYTES, "little")
        self._message = torch.frombuffer(bytearray(key + content), dtype=torch.uint8)
        self._pending: Pending[list[Tensor]] | None = None

    def send(self, thread: ExchangeThread) -> None:
        """Submit it."""

        def begin(transport: Transport) -> Callable[[], list[Tensor]]:
            arriving = begin_allgather(transport, self._message)
            return lambda: list(arriving())

        self._pending = thread.submit(begin, f"the message '{self._name}'")

    def wait(self) -> list[bytes]:
        """Return all messages, by rank.

        Raises:
            ExchangeError: a rank did not answer in time, or told something else.
        """
        if self._pending is None:
            self._messages.flush()
        assert self._pending is not None
        told = [bytes(message.numpy()) for message in self._pending.wait()]
        if any(message[:_NAME_BYTES] != told[0][:_NAME_BYTES] for message in told):
            raise ExchangeError(
                f"the ranks tell each other different things, this one '{self._name}': they are at different "
                "places of their training loops"
            )
        return [message[_NAME_BYTES:] for message in told]
