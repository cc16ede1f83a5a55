"""What the commands of the control channel have in common."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

import click

from gradsieve_hvd.control.contract import TLS_DIRECTORY

tls_option = click.option(
    "--tls",
    type=click.Path(file_okay=False, path_type=Path),
    envvar=TLS_DIRECTORY,
    required=True,
    metavar="DIR",
    help="Folder with ca.crt, tls.crt and tls.key of this party.",
)


class IndentedLines(logging.Formatter):
    """Indents all lines of a message but the first, and shows control characters by their numbers.

    What agents, ranks and callers say is part of messages: it must not look like a line of ours, nor steer
    the terminal of whoever reads it.
    """

    _CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

    def format(self, record: logging.LogRecord) -> str:
        """Return the whole text of a record."""
        text = "\n    ".join(super().format(record).splitlines())
        return self._CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def log_to_stderr(program: str) -> None:
    """Log lines begin with the program's name, as ranks' lines begin with their number."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(IndentedLines(f"gradsieve {program}: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    # Horovod's driver tells everything that it does through the root logger.
    logging.getLogger("gradsieve").setLevel(logging.INFO)
