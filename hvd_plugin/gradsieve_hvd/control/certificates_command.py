"""``gradsieve certificates``."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import click

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.control.certificates import issue, parties


@click.command("certificates")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    required=True,
    metavar="NAME[=ADDRESS...]",
    help="A host that gets an agent; may be repeated.",
)
@click.option(
    "--coordinator", "coordinator", multiple=True, metavar="ADDRESS", help="Names of the coordinator's host."
)
@click.option(
    "--days", type=click.IntRange(1, 3650), default=90, show_default=True, help="How long they are valid."
)
def command(folder: Path, hosts: tuple[str, ...], coordinator: tuple[str, ...], days: int) -> None:
    """Make the certificates of one job: DIR/coordinator, DIR/operator and DIR/NAME for every host.

    The authority's key is not kept: for another host, make all anew.
    """
    named = []
    for word in hosts:
        name, _, addresses = word.partition("=")
        named.append((name, addresses.split("=") if addresses else []))
    who = parties(named, coordinator)
    for party in who:
        if (folder / party.name).exists():
            raise ConfigurationError(f"{folder / party.name} exists already: give an empty folder")
    for party, credentials in zip(who, issue(who, lifetime=timedelta(days=days)), strict=True):
        credentials.write(folder / party.name)
        click.echo(folder / party.name)
