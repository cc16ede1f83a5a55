"""TLS: to coordinators one context for each job, with its sessions resumed, and small buffers for all."""

from __future__ import annotations

import base64
import ssl
import tempfile
from asyncio import sslproto
from pathlib import Path
from typing import Any

from gradsieve_operator import contract
from gradsieve_operator.resources import Manifest

_READ_BYTES = 1 << 15


def read_by_little() -> None:
    """Have asyncio's TLS connections that begin from now on read 32 KiB at a time instead of 256.

    Each holds a buffer of that size from its beginning to its end. With a hundred connections at a time, most
    of them to coordinators, of which each is new, these were a quarter of all that the leader held.
    """
    sslproto.SSLProtocol.max_size = _READ_BYTES


class JobContext(ssl.SSLContext):
    """A context for one job's coordinator that goes on with the session of its last whole handshake.

    A coordinator is asked a few times a minute, mostly by a connection of its own: kept open, those of a
    thousand jobs would hold hundreds of MiB. Resuming a session saves a third of a handshake's work; the
    other side may refuse to, and then there is a whole handshake.
    """

    _last: ssl.SSLObject | None = None
    _session: ssl.SSLSession | None = None

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        """Begin a connection, as asyncio does."""
        self._last = super().wrap_bio(*arguments, **{**named, "session": self._session})
        return self._last

    def keep_session(self) -> None:
        """Have the next connections go on with the session of the last one, which has brought an answer.

        TLS 1.3 tells of a session only after the handshake. One that was resumed stays: before Python 3.12.8
        and 3.13.1, each one that is asked for costs 7 KiB that are never freed (python/cpython#116810).
        """
        if self._last is not None and not self._last.session_reused:
            self._session = self._last.session
        self._last = None


def context_of(secret: Manifest) -> JobContext:
    """Return the TLS context of the operator for one job, from the Secret with its certificate."""
    data = {name: base64.b64decode(value) for name, value in secret["data"].items()}
    context = JobContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=data[contract.CA_CERTIFICATE].decode())
    # The interface takes files only; the key lies in a file of our own for no longer than it is read.
    with tempfile.TemporaryDirectory(prefix="gradsieve-") as folder:
        chain, key = Path(folder) / contract.CERTIFICATE, Path(folder) / contract.PRIVATE_KEY
        chain.write_bytes(data[contract.CERTIFICATE])
        key.touch(mode=0o600)
        key.write_bytes(data[contract.PRIVATE_KEY])
        context.load_cert_chain(chain, key)
    return context
