"""TLS with certificates on both sides, and nothing but the job's own authority to trust."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.control.contract import CA_CERTIFICATE, CERTIFICATE, PRIVATE_KEY

FOLLOW_SECONDS = 1.0
"""How often to look whether there are further authorities: a job waits for its operator meanwhile."""

_log = logging.getLogger("gradsieve.tls")


def server_context(folder: Path) -> ssl.SSLContext:
    """For the coordinator: whoever connects must show a certificate of the job's authority.

    Args:
        folder: holds ``ca.crt``, ``tls.crt`` and ``tls.key``.

    Raises:
        ConfigurationError: a file is missing or damaged, or key and certificate do not belong together.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, folder)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(folder: Path) -> ssl.SSLContext:
    """For agents, ranks and operator: shows the certificate in ``folder``, and checks the server's name.

    Raises:
        ConfigurationError: as :func:`server_context`.
    """
    return _context(ssl.PROTOCOL_TLS_CLIENT, folder)


class Authorities:
    """Keeps what a context trusts up to date with ``ca.crt``, to which an operator may add.

    When a Secret of a job is lost, the job's authority, whose key was never kept, cannot sign another one: a
    further authority signs it, and whoever knows the job is told to trust that too, while it runs. What was
    trusted once stays so, and connections that stand stay open.

    Args:
        context: of the connections that begin from now on.
        folder: holds ``ca.crt``.
    """

    def __init__(self, context: ssl.SSLContext, folder: Path) -> None:
        self._context, self._file = context, folder / CA_CERTIFICATE
        self._known = self._read()

    def refresh(self) -> bool:
        """Trust what the file holds now; returns whether that is new. A damaged file changes nothing."""
        found = self._read()
        if found in (b"", self._known):
            return False
        self._known = found
        try:
            self._context.load_verify_locations(cadata=found.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            _log.warning("%s is damaged, what was trusted before still is: %s", self._file, error)
            return False
        _log.info("%s has changed: its authorities are trusted from now on", self._file)
        return True

    def current(self) -> ssl.SSLContext:
        """Return the context for the next connection, which trusts what the file holds now."""
        self.refresh()
        return self._context

    def _read(self) -> bytes:
        try:
            return self._file.read_bytes()
        except OSError:
            return b""


def _context(protocol: int, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(folder / CA_CERTIFICATE)
        context.load_cert_chain(folder / CERTIFICATE, folder / PRIVATE_KEY)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"{folder} must hold {CA_CERTIFICATE}, {CERTIFICATE} and {PRIVATE_KEY} of one party "
            f"(`gradsieve certificates` makes them): {error}"
        ) from error
    return context
