"""What the commands of the control channel have in common."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

import click

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.control.names import TLS_DIRECTORY
from gradsieve_hvd.control.serve import Address

_ADDRESS = re.compile(r"(?:https://)?(?:\[(?P<six>[^]]+)\]|(?P<host>[^:\[\]/]*))(?::(?P<port>\d{1,5}))?/?")

tls_option = click.option(
    "--tls",
    type=click.Path(file_okay=False, path_type=Path),
    envvar=TLS_DIRECTORY,
    required=True,
    metavar="DIR",
    help="Folder with ca.crt, tls.crt and tls.key of this party.",
)


def address(text: str, port: int) -> Address:
    """Host and port in ``text``: ``HOST:PORT``, ``HOST``, ``[IPv6]:PORT``, also with ``https://`` before it.

    Raises:
        ConfigurationError: it is none of these.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match["port"] or port) < 65536:
        raise ConfigurationError(f"{text!r} is no address: write HOST:PORT, as in trainer-0:{port}")
    return Address(match["six"] or match["host"], int(match["port"] or port))


def log_to_stderr(program: str) -> None:
    """Log lines begin with the program's name, as ranks' lines begin with their number."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format=f"gradsieve {program}: %(message)s", force=True
    )
    # Horovod's driver tells everything that it does through the root logger.
    logging.getLogger("gradsieve").setLevel(logging.INFO)
