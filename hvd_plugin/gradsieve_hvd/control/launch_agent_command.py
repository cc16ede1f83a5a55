"""``gradsieve launch-agent``: the same as the script that ``mpirun`` calls."""

from __future__ import annotations

import sys

import click

from gradsieve_hvd.control.launch_agent import main


@click.command("launch-agent", context_settings={"ignore_unknown_options": True})
@click.argument("host")
@click.argument("words", metavar="COMMAND...", nargs=-1, type=click.UNPROCESSED, required=True)
def command(host: str, words: tuple[str, ...]) -> None:
    """Stand in for ssh below a coordinator's mpirun: have HOST's agent run COMMAND."""
    sys.exit(main([host, *words]))
