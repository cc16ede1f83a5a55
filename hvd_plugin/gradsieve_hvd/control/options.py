"""What the commands of the control channel have in common."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click

from gradsieve_hvd.control.names import TLS_DIRECTORY

tls_option = click.option(
    "--tls",
    type=click.Path(file_okay=False, path_type=Path),
    envvar=TLS_DIRECTORY,
    required=True,
    metavar="DIR",
    help="Folder with ca.crt, tls.crt and tls.key of this party.",
)


def log_to_stderr(program: str) -> None:
    """Log lines begin with the program's name, as ranks' lines begin with their number."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format=f"gradsieve {program}: %(message)s", force=True
    )
    # Horovod's driver tells everything that it does through the root logger.
    logging.getLogger("gradsieve").setLevel(logging.INFO)
