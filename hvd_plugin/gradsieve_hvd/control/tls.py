"""TLS with certificates on both sides, and nothing but the job's own authority to trust."""

from __future__ import annotations

import ssl
from pathlib import Path

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.control.names import CA_CERTIFICATE, CERTIFICATE, PRIVATE_KEY


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
