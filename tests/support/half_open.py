"""Connections that never finish what they begin, as an attacker holds them: on this machine only."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import ssl
from types import TracebackType
from typing import Self


class HalfOpen:
    """Half-open connections; a context manager that closes what is left.

    Args:
        port: of 127.0.0.1.
        first: what each says, before it is silent.
    """

    def __init__(self, port: int, first: bytes = b"") -> None:
        self._to, self._first = ("127.0.0.1", port), first
        self._held: dict[int, socket.socket] = {}
        self._poll = select.epoll()

    def __enter__(self) -> Self:
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed[1], allowed[1]))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for held in self._held.values():
            held.close()
        self._poll.close()

    def open(self, count: int, source: str) -> None:
        """Open so many more from an address of loopback; none is closed by this side."""
        for number in range(count):
            one = socket.socket()
            one.bind((source, 0))
            one.settimeout(20)
            # Who is thrown out at once hears of it here or later.
            with contextlib.suppress(ConnectionError):
                one.connect(self._to)
                one.sendall(self._first)
            one.setblocking(False)
            self._held[one.fileno()] = one
            self._poll.register(one, select.EPOLLRDHUP)
            if number % 100 == 99:
                self._notice()

    def _notice(self) -> None:
        """Close what the other side has ended."""
        for number, _ in self._poll.poll(0):
            self._poll.unregister(number)
            self._held.pop(number).close()


def client_hello() -> bytes:
    """Return the first words of a TLS client."""
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = context.wrap_bio(incoming, outgoing, server_hostname="coordinator")
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    return outgoing.read()
